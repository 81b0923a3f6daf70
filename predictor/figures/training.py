"""Curves of a training, and of several side by side."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actstore.run_files import LOG
from predictor.figures.style import BLACK, BLUE, GREEN, LINES, ORANGE, family_style, new_figure, save, tidy
from predictor.method_key import LABELS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Lines = list[dict[str, float]]  # of a log


def draw_training_curves(folder: Path) -> None:
    """curves.png from log.csv: the loss, and where it was measured the held-out accuracy."""
    lines = read_log(folder)
    if not lines:
        return
    measured = "base_top1" in lines[0]
    figure = new_figure(10 if measured else 5, 4)
    panels = figure.subplots(1, 2 if measured else 1, squeeze=False)[0]
    steps = [line["step"] for line in lines]
    panels[0].plot(steps, [line["loss"] for line in lines], color=BLACK)
    panels[0].set_ylabel("training loss")
    if measured:
        for key, colour, style, name in (
            ("base_top1", BLUE, "-", "base categories"),
            ("novel_top1", ORANGE, "--", "novel categories, 1 shot"),
            ("harmonic", GREEN, ":", "harmonic mean"),
        ):
            panels[1].plot(steps, [line[key] for line in lines], style, color=colour, label=name)
        panels[1].set_ylabel("held-out top-1, all-way (%)")
        panels[1].set_ylim(bottom=0)
        panels[1].legend(frameon=False)
    for panel in panels:
        panel.set_xlabel("step")
        tidy(panel)
    save(figure, folder / "curves.png")


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


def read_log(folder: Path) -> Lines:
    """Of a training in this folder; empty where it has none."""
    if not (folder / LOG).exists():
        return []
    with (folder / LOG).open(newline="") as file:
        return [{key: float(value) for key, value in line.items()} for line in csv.DictReader(file)]
