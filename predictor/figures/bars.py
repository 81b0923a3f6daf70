"""Bars of measurements, one panel below the other: the one way in which benchmarks are drawn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actstore.compute.measure import Result
from predictor.figures.style import BLUE, GREY, ORANGE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOG_FROM = 30  # largest over smallest value
BATCH = re.compile(r",? batch \d+")
COLOURS = {"search": ORANGE, "backbone": GREY}  # of inference, by kind; a parametric classifier is blue


@dataclass(frozen=True)
class Bar:
    """note: written behind the bar. mark: what the value is compared with, on the same line."""

    name: str
    value: float
    note: str
    colour: str = BLUE
    mark: float | None = None


def draw_contenders(results: Sequence[Result], title: str) -> Figure:
    """`actstore bench`: the store beside other stores, a panel for each measurement.

    Results named '<measurement> <contender>', higher is better, the best first; ours are blue."""
    panels: dict[tuple[str, str], list[Bar]] = {}
    for result in sorted(results, key=lambda result: result.value, reverse=True):
        measurement, name = result.name.split(" ", 1)
        note = f"{result.value:,.0f}" if result.value >= 1000 else f"{result.value:.3g}"
        bar = Bar(name, result.value, note, BLUE if name.startswith("actstore") else GREY)
        panels.setdefault((f"{measurement}, higher is better", result.unit), []).append(bar)
    return _draw(panels, title)


def draw_inference(results: Sequence[Mapping[str, Any]], title: str = "Inference") -> Figure:
    """`ppa bench-inference`: every measurement, and its peer as a mark on the same line.

    results: objects {name, value, unit, peer, peer_value, ratio, kind}; the last four may be None. A panel for each
    unit and batch size, which is read from the end of the names.
    """
    panels: dict[tuple[str, str], list[Bar]] = {}
    for result in results:
        batch = BATCH.search(result["name"])
        panel = (batch[0].strip(", ") if batch else result["unit"], result["unit"])
        panels.setdefault(panel, []).append(_inference_bar(result))
    has_peer = any(result.get("peer_value") is not None for result in results)
    explained = "\nbars: what was measured; marks: what it is compared with" if has_peer else ""
    return _draw(panels, title + explained)


def _inference_bar(result: Mapping[str, Any]) -> Bar:
    note = f"{result['value']:,.4g}"
    if result.get("ratio") is not None and result.get("peer"):
        note += f"   {result['ratio']:.3g} × {result['peer']}"
    colour = COLOURS.get(result.get("kind") or "", BLUE)
    return Bar(BATCH.sub("", result["name"]), float(result["value"]), note, colour, result.get("peer_value"))


def _draw(panels: Mapping[tuple[str, str], Sequence[Bar]], title: str) -> Figure:
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
        axes.set_xlim(low / 2, high * (high / low) ** 0.45)
        axes.set_xlabel(f"{unit}, log scale")
    else:
        axes.set_xlim(0, high * 1.5)
        axes.set_xlabel(unit)
