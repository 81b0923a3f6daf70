"""A sheet of novel categories: their one example, the base categories that its parameters resemble, a test image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from predictor.figures.style import GREEN, GREY, ORANGE, new_figure, readable
from predictor.report.support_sheet import SheetRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST = 18  # characters of a name


def draw_sheet(rows: Sequence[SheetRow], how: str) -> Figure:
    """how: what classifies, such as "phi2, calibrated"."""
    beside = max(len(row.neighbours) for row in rows)
    figure = new_figure(1.5 * (beside + 2) + 3.4, 1.55 * len(rows) + 0.9)
    grid = figure.subplots(
        len(rows), beside + 3, squeeze=False, gridspec_kw={"width_ratios": [1] * (beside + 2) + [2.4]}
    )
    for line, row in zip(grid, rows, strict=True):
        _show(line[0], row.support, f"{_short(row.name)}", "black")
        for axes, (picture, name, cosine) in zip(line[1:], row.neighbours, strict=False):
            _show(axes, picture, f"{_short(name)}  {cosine:.2f}", "#555555")
        _show(line[beside + 1], row.query, f"{_short(row.name)}", "black")
        _draw_top(line[beside + 2], row)
    grid[0][0].set_title("the one example", fontsize=10)
    wide = grid[0][1].annotate(
        "base categories of the most similar parameters (cosine)", (0, 1), xytext=(0, 6), fontsize=10,
        xycoords="axes fraction", textcoords="offset points",
    )  # fmt: skip
    wide.set_in_layout(False)  # it spans several pictures, which would otherwise be moved apart
    grid[0][beside + 1].set_title("test image", fontsize=10)
    grid[0][beside + 2].set_title("taken for (probability)", fontsize=10)
    figure.suptitle(f"Novel categories learnt from one example: {how}. Evenly spaced, not selected")
    return figure


def _short(name: str) -> str:
    shown = readable(name)
    shown = f"{shown}  {name}" if shown != name else shown
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def _show(axes: Any, picture: Any, below: str, colour: str) -> None:
    axes.imshow(picture, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(below, fontsize=8.5, color=colour)
    axes.spines[:].set_color(GREY)


def _draw_top(axes: Any, row: SheetRow) -> None:
    """Bars; what is right is green and ticked, so that colour is not needed to see it."""
    for place, (name, share) in enumerate(row.top):
        is_right = name == row.name
        axes.barh([place], [share], color=GREEN if is_right else ORANGE if place == 0 else GREY, height=0.7, alpha=0.65)
        axes.text(0.02, place, f"{'✓ ' if is_right else ''}{_short(name)}   {share:.0%}", va="center", fontsize=8.5)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(row.top) - 0.4, -0.6)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
