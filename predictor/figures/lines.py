"""Lines: how trainings went, sessions, and what one constant on the novel scores does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.figures.style import BLACK, BLUE, GREEN, LINES, ORANGE, family_style, new_panels, save
from predictor.protocol.method_key import LABELS, key_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
            panel.plot(*zip(*points, strict=True), color=colour, marker=marker, label=row["method"],
                       linestyle="-" if key_of(row).is_calibrated else "--")  # fmt: skip
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
