"""Curves of several trainings side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from predictor.figures.style import LINES, family_style, new_figure, tidy
from predictor.protocol.method_key import LABELS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Lines = list[dict[str, float]]  # of a log


def draw_runs(logs: Mapping[str, Lines]) -> Figure:
    """Name or kind of phi -> log: the loss, and held-out base and novel accuracy, one line per run."""
    measured = all("base_top1" in lines[0] for lines in logs.values())
    columns = [("loss", "training loss")]
    if measured:
        columns += [("base_top1", "base top-1, held out (%)"), ("novel_top1", "novel top-1, 1 shot, held out (%)")]
    figure = new_figure(4.2 * len(columns), 3.8)
    panels = figure.subplots(1, len(columns), squeeze=False)[0]
    for panel, (key, label) in zip(panels, columns, strict=True):
        for number, (name, lines) in enumerate(logs.items()):
            _plot(panel, lines, key, number, name)
        panel.set_xlabel("step")
        panel.set_ylabel(label)
        tidy(panel)
    panels[0].legend(frameon=False)
    title = "How training went"
    figure.suptitle(title + (", all-way accuracy measured on a sample after every epoch" if measured else ""))
    return figure


def _plot(panel: Any, lines: Lines, key: str, number: int, name: str) -> None:
    marker = "o" if len(lines) <= 30 else None
    panel.plot(
        [line["step"] for line in lines], [line[key] for line in lines],
        linestyle=LINES[number % len(LINES)], color=family_style(name)[0], label=LABELS.get(name, name), marker=marker,
        markersize=3,
    )  # fmt: skip
