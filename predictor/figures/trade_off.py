"""What one constant on the novel scores does: base against novel accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from predictor.figures.style import BLACK, BLUE, GREEN, ORANGE, new_figure, save, tidy


def draw_trade_off(path: Path, curves: Mapping[str, Sequence[Any]], points: Sequence[tuple[str, float, float]]) -> None:
    """curves: name -> (novel accuracies, base accuracies) over all biases; points: (label, novel, base)."""
    figure = new_figure(6, 4.5)
    axes = figure.subplots()
    lines = cycle(zip(("-", "--", ":", "-."), (BLUE, ORANGE, GREEN, BLACK), strict=True))
    for (name, (novel, base)), (style, colour) in zip(curves.items(), lines, strict=False):
        axes.plot(novel, base, style, color=colour, label=name)
    for number, (label, novel, base) in enumerate(points):
        axes.plot([novel], [base], "osD^v"[number % 5], color=BLACK, markersize=7, label=label)
    axes.set_xlabel("top-1 on the categories learnt from examples (%)")
    axes.set_ylabel("base top-1 (%)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)
    tidy(axes)
    save(figure, path)
