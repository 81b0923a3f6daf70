"""How all pictures look, how categories and methods are called in them, and what is drawn as lines (trainings,
sessions, what one constant does) or bars (benchmarks).

Colours are Okabe and Ito's, told apart in grey by their lines and markers too.
"""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actstore.backbones.network import imagenet_names
from actstore.errors import InvalidInputError
from actstore.storage.atomic_file import write_atomic
from predictor.protocol.results import LABELS, key_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLACK, BLUE, ORANGE, GREEN, GREY = "#000000", "#0072b2", "#d55e00", "#009e73", "#999999"
SKY, PINK, YELLOW = "#56b4e9", "#cc79a7", "#e69f00"
COLOURS = (BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, BLACK)  # of groups
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 3)))
FAMILIES = {  # colour and marker by a method's key
    "phi2star": (SKY, "v"),
    "phi2": (ORANGE, "o"),
    "phi1": (PINK, "s"),
    "nn": (BLUE, "^"),
    "triplet": (GREEN, "D"),
    "triplet-images": (GREEN, "D"),
    "finetune": (YELLOW, "P"),
    "finetune-images": (YELLOW, "P"),
    "child": (YELLOW, "d"),
    "oracle-nn": (BLACK, "x"),
    "oracle-linear": (BLACK, "+"),
    "imprint-base-rows": (GREY, "*"),
    "imprint": (GREY, "<"),
    "simple-shot": (PINK, "p"),
}
DPI = 130
_WNID = re.compile(r"n\d{8}")
_GLYPH = re.compile(r"U\+([0-9A-F]{4,6})")
_MATHEMATICS = "$^_{}\\"  # what these letters mean to matplotlib


def new_figure(width: float, height: float) -> Figure:
    """Inches. Not of pyplot: nothing is kept in memory, and no display is needed."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.07))


def new_panels(width: float, height: float, across: str, *labels: str) -> tuple[Figure, Any]:
    """A figure and its axes, one panel beside the other. across, labels: what is on their axes."""
    figure = new_figure(width, height)
    panels = figure.subplots(1, len(labels), squeeze=False)[0]
    for panel, label in zip(panels, labels, strict=True):
        panel.set_xlabel(across)
        panel.set_ylabel(label)
        tidy(panel)
    return figure, panels


def tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def save(figure: Figure, path: Path) -> None:
    """PNG, SVG or PDF by the suffix, written atomically."""
    from matplotlib import rc_context

    image = io.BytesIO()
    kind = path.suffix.removeprefix(".") or "png"
    if kind not in ("png", "svg", "pdf"):
        raise InvalidInputError(f"pictures are written as .png, .svg or .pdf, got {path}")
    # no date and a fixed salt for ids: the same figure is the same file; text becomes shapes, as fonts differ
    metadata = {"Date": None} if kind == "svg" else None
    with rc_context({"svg.hashsalt": "actstore", "svg.fonttype": "path"}):
        figure.savefig(image, format=kind, dpi=DPI, metadata=metadata)
    write_atomic(path, image.getvalue())


def save_both(figure: Figure, folder: Path, name: str) -> Path:
    """NAME.png and NAME.svg; the path of the first."""
    for suffix in (".svg", ".png"):
        save(figure, folder / (name + suffix))
    return folder / f"{name}.png"


def family_style(key: str) -> tuple[str, str]:
    """Colour and marker of a method by its key, the same in every figure."""
    return FAMILIES.get(key, (GREY, "H"))


def known_display(name: str) -> str:
    """tench for n01440764, one of ImageNet; A for U+0041, one of the embedded glyphs; other names as they are."""
    if _WNID.fullmatch(name):
        return imagenet_names().get(name, name)
    code = _GLYPH.fullmatch(name)
    if code is None or int(code[1], 16) > 0x10FFFF:
        return name
    character = chr(int(code[1], 16))
    return character if unicodedata.category(character)[0] in "LNPS" else name


def readable(name: str) -> str:
    """The same in a picture; by its code where matplotlib would read it as mathematics."""
    shown = known_display(name)
    return name if shown in _MATHEMATICS else shown


def short_name(row: Mapping[str, Any]) -> str:
    """Of the method of a table's row, with its share of D_large where several are measured."""
    share = f" {row['d_large']}" if key_of(row).is_by_share else ""
    return str(row["method"]).replace(" (activations)", "") + share


LOG_FROM = 30  # largest over smallest value
BATCH = re.compile(r",? batch \d+")
KIND_COLOURS = {"search": ORANGE, "backbone": GREY}  # of inference, by kind; a parametric classifier is blue


@dataclass(frozen=True)
class Bar:
    """note: written behind the bar. mark: what the value is compared with, on the same line."""

    name: str
    value: float
    note: str
    colour: str = BLUE
    mark: float | None = None


def draw_inference(results: Sequence[Mapping[str, Any]], title: str = "Inference") -> Figure:
    """`ppa bench-inference`: every measurement, and its peer as a mark on the same line.

    results: objects {name, value, unit, peer, peer_value, ratio, kind}; the last four may be None. A panel for each
    unit and batch size, which is read from the end of the names.
    """
    panels: dict[tuple[str, str], list[Bar]] = {}
    for result in results:
        batch = BATCH.search(result["name"])
        panel = (batch[0].strip(", ") if batch else result["unit"], result["unit"])
        note, colour = f"{result['value']:,.4g}", KIND_COLOURS.get(result.get("kind") or "", BLUE)
        if result.get("ratio") is not None and result.get("peer"):
            note += f"   {result['ratio']:.3g} × {result['peer']}"
        name = BATCH.sub("", result["name"])
        panels.setdefault(panel, []).append(Bar(name, float(result["value"]), note, colour, result.get("peer_value")))
    has_peer = any(result.get("peer_value") is not None for result in results)
    explained = "\nbars: what was measured; marks: what it is compared with" if has_peer else ""
    return draw_bars(panels, title + explained)


def draw_bars(panels: Mapping[tuple[str, str], Sequence[Bar]], title: str) -> Figure:
    """panels: (title, unit) -> bars."""
    heights = [len(bars) + 1 for bars in panels.values()]
    figure = new_figure(11, 0.9 + 0.34 * sum(heights) + 0.45 * len(panels))
    all_axes = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axes, ((name, unit), bars) in zip(all_axes, panels.items(), strict=True):
        _draw_panel(axes, unit, bars)
        axes.set_title(name, fontsize=10, loc="left")
    figure.suptitle(title)
    return figure


def _draw_panel(axes: Any, unit: str, bars: Sequence[Bar]) -> None:
    places = range(len(bars))
    marks = {place: bar.mark for place, bar in enumerate(bars) if bar.mark is not None}
    axes.barh(places, [bar.value for bar in bars], color=[bar.colour for bar in bars], height=0.7)
    axes.plot(list(marks.values()), list(marks), "D", color="white", mec="black", markersize=6, linestyle="none")
    axes.set_yticks(places, [bar.name for bar in bars], fontsize=9)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    _set_scale(axes, [*(bar.value for bar in bars), *marks.values()], unit)
    for place, bar in enumerate(bars):
        end = max(bar.value, marks.get(place, 0.0))
        axes.annotate(bar.note, (end, place), xytext=(9, 0), textcoords="offset points", va="center", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _set_scale(axes: Any, values: Sequence[float], unit: str) -> None:
    """Room at the right for the notes."""
    low, high = min(values), max(values)
    if low > 0 and high / low > LOG_FROM:
        axes.set_xscale("log")
        axes.set_xlim(low / 2, high * (high / low) ** 0.7)
        axes.set_xlabel(f"{unit}, log scale")
    else:
        axes.set_xlim(0, high * 1.8)
        axes.set_xlabel(unit)


SESSION_PANELS = {
    "accuracy": "accuracy over all categories (%)", "harmonic_mean": "harmonic mean of base and novel (%)",
}  # fmt: skip
RUN_PANELS = {
    "loss": "training loss", "base_top1": "base top-1, held out (%)", "novel_top1": "novel top-1, 1 shot, held out (%)",
}  # fmt: skip
Log = Sequence[Mapping[str, float]]  # of a training


def draw_runs(logs: Mapping[str, Log]) -> Figure:
    """Name or kind of phi -> log: the loss, and held-out base and novel accuracy, one line per run."""
    measured = all("base_top1" in log[0] for log in logs.values())
    columns = RUN_PANELS if measured else {"loss": RUN_PANELS["loss"]}
    figure, panels = new_panels(4.2 * len(columns), 3.8, "step", *columns.values())
    for panel, column in zip(panels, columns, strict=True):
        for number, (name, log) in enumerate(logs.items()):
            label, colour, dashes = LABELS.get(name, name), family_style(name)[0], LINES[number % len(LINES)]
            plot_log(panel, log, "step", column, label=label, color=colour, linestyle=dashes)
    panels[0].legend(frameon=False)
    title = "How training went"
    figure.suptitle(title + (", all-way accuracy measured on a sample after every epoch" if measured else ""))
    return figure


def plot_log(panel: Any, log: Log, across: str, column: str, factor: float = 1.0, **style: Any) -> None:
    """A column of a log; with markers where it has few lines."""
    values = [factor * line[column] for line in log]
    panel.plot([line[across] for line in log], values, marker="o" if len(log) <= 30 else None, markersize=3, **style)


def draw_sessions(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Accuracy and harmonic mean as categories are added session by session. rows: as
    `predictor.report.session_table.session_rows` gives them; published ones are points at the end."""
    figure, panels = new_panels(11.0, 5.2, "categories known", *SESSION_PANELS.values())
    ours = [row for row in rows if "published" not in row]
    for panel, measure in zip(panels, SESSION_PANELS, strict=True):
        for row in ours:
            colour, marker = family_style(key_of(row).key)
            points = [(x, y) for x, y in zip(row["categories"], row[measure], strict=True) if y is not None]
            share = f", {row['d_large']} of D_large" * key_of(row).is_by_share
            panel.plot(*zip(*points, strict=True), color=colour, marker=marker, label=row["method"] + share,
                       linestyle="-" if key_of(row).is_calibrated else "--",
                       alpha={"10%": 0.7, "1%": 0.4}.get(row.get("d_large", ""), 1))  # fmt: skip
        panel.xaxis.get_major_locator().set_params(integer=True)
    last = ours[0]["categories"][-1]
    for row in rows:
        if "published" in row:
            panels[0].plot([last], [row["last_accuracy"]], marker="x", color="grey", linestyle="")
            panels[0].annotate(f" {row['method']} ({row['backbone']})", (last, row["last_accuracy"]), fontsize=7)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"{ours[0]['way']} categories a session from {ours[0]['shots']} examples, no training in a session")
    return figure


def draw_trade_off(path: Path, curves: Mapping[str, Sequence[Any]], points: Sequence[tuple[str, float, float]]) -> None:
    """Base against novel accuracy. curves: name -> (novel accuracies, base accuracies) over all biases; points: (label,
    novel, base)."""
    figure, (axes,) = new_panels(6, 4.5, "top-1 on the categories learnt from examples (%)", "base top-1 (%)")
    lines = cycle(zip(("-", "--", ":", "-."), (BLUE, ORANGE, GREEN, BLACK), strict=True))
    for (name, (novel, base)), (style, colour) in zip(curves.items(), lines, strict=False):
        axes.plot(novel, base, style, color=colour, label=name)
    for number, (label, novel, base) in enumerate(points):
        axes.plot([novel], [base], "osD^v"[number % 5], color=BLACK, markersize=7, label=label)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)
    save(figure, path)
