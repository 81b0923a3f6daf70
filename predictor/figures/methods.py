"""All methods of the all-way table: base against novel accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.figures.accuracy_axis import ENDS, from_logit, logit, set_accuracy_axis
from predictor.figures.label_placement import Box, place_labels
from predictor.figures.naming import short_name
from predictor.figures.style import family_style, new_figure, tidy
from predictor.protocol.method_key import key_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = (1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98)  # of the harmonic mean
NAME_WIDTH = 30.0  # pixels of "H 90" at the 100 dpi of a figure before it is saved
Point = tuple[float, float]


def draw_methods(records: Sequence[Mapping[str, Any]], shots: str) -> Figure:
    """records: rows of the all-way table; those of this number of shots are drawn.

    Where accuracies are near 0 or 100, axes have a logit scale, on which those ends are as wide as the middle.
    """
    rows = [row for row in records if row["shots"] in (shots, "all")]
    figure = new_figure(10, 7.2)
    axes = figure.subplots()
    novel = set_accuracy_axis(axes, "x", [float(row["top1_few"]) for row in rows], "novel top-1 (%)")
    base = set_accuracy_axis(axes, "y", [float(row["top1_large"]) for row in rows], "base top-1 (%)")
    named = _draw_levels(axes)
    bars = []
    for row, x, y in zip(rows, novel, base, strict=True):
        wide, high = row.get("top1_few_ci95") or 0, row.get("top1_large_ci95") or 0
        bars += [((x - wide, y), (x + wide, y)), ((x, y - high), (x, y + high))]
        _draw_point(axes, row, x, y, bars[-2:])
    axes.plot([], [], color="#bbbbbb", linewidth=0.7, label="equal harmonic mean H")
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    number = len({row["method"] for row in rows})
    axes.set_title(f"Base against novel accuracy of {number} methods, all-way, {shots} shot{'s' * (shots != '1')}")
    tidy(axes)
    _label(figure, axes, [short_name(row) for row in rows], list(zip(novel, base, strict=True)), bars, named)
    return figure


def _draw_point(axes: Any, row: Mapping[str, Any], x: float, y: float, bars: Sequence[tuple[Point, Point]]) -> None:
    method = key_of(row)
    colour, marker = family_style(method.key)
    is_filled = method.is_calibrated or not method.is_phi
    for ends in bars:
        xs, ys = np.clip(np.array(ends), *ENDS).T
        axes.plot(xs, ys, color=colour, linewidth=1, zorder=3)
    axes.plot([x], [y], marker, color=colour, mfc=colour if is_filled else "white", mew=1.6, markersize=8, zorder=4)


def _draw_levels(axes: Any) -> list[Any]:
    """Thin lines of equal harmonic mean, and their names at the upper or left edge of the picture."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    named: list[Any] = []
    last = -NAME_WIDTH
    for level in LEVELS:
        steep, flat = (np.linspace(logit(one), logit(other), 1000) for one, other in ((high, low), (left, right)))
        steep, flat = (grid[grid > level / 2 + 1e-9] for grid in (from_logit(steep), from_logit(flat)))
        base = np.concatenate([steep, level * flat / (2 * flat - level)])
        novel = np.concatenate([level * steep / (2 * steep - level), flat])
        order = np.lexsort((novel, -base))
        novel, base = novel[order], base[order]
        inside = np.flatnonzero((novel > left) & (novel < right) & (base >= low) & (base <= high))
        if not len(inside):
            continue
        axes.plot(novel[inside], base[inside], color="#bbbbbb", linewidth=0.7, zorder=1)
        end = inside[0]
        place = axes.transData.transform((novel[end], base[end]))[0]
        if place - last < NAME_WIDTH:
            continue  # lines so near each other can be told by their neighbours' names
        last = place
        named.append(axes.annotate(
            f"H {level}", (novel[end], base[end]), xytext=(3, -10), textcoords="offset points", fontsize=7.5,
            color="#888888",
        ))  # fmt: skip
    return named


def _label(
    figure: Figure,
    axes: Any,
    names: Sequence[str],
    places: Sequence[Point],
    bars: Sequence[tuple[Point, Point]],
    other: Sequence[Any],
) -> None:
    """In pixels, after the layout is settled, as only then it is known where points are. other: texts to leave free."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    figure.set_layout_engine("none")
    points = [tuple(place) for place in axes.transData.transform(places).tolist()]
    texts = [axes.text(0, 0, name, fontsize=9, transform=None, va="bottom") for name in names]
    extents = [text.get_window_extent(canvas.get_renderer()) for text in texts]
    around = axes.get_window_extent()
    frame = Box(around.x0 + 2, around.y0 + 18, around.x1 - 2, around.y1 - 2)
    obstacles = _bar_boxes(axes, bars) + [
        Box(one.x0, one.y0, one.x1, one.y1) for one in (text.get_window_extent() for text in other)
    ]
    placed = place_labels(points, [(extent.width, extent.height) for extent in extents], frame, obstacles)
    to_axes = axes.transAxes.inverted().transform
    for text, place, (x, y) in zip(texts, placed, points, strict=True):
        text.set_transform(axes.transAxes)
        text.set_position(to_axes((place.box.left, place.box.bottom)))
        if place.is_far:
            edge = min(max(x, place.box.left), place.box.right), min(max(y, place.box.bottom), place.box.top)
            ends = to_axes([(x, y), edge])
            axes.plot(ends[:, 0], ends[:, 1], color="#777777", linewidth=0.7, transform=axes.transAxes, zorder=2)


def _bar_boxes(axes: Any, bars: Sequence[tuple[Point, Point]]) -> list[Box]:
    """Error bars as boxes of pixels."""
    found = []
    for ends in bars:
        (x0, y0), (x1, y1) = axes.transData.transform(np.clip(np.array(ends), *ENDS)).tolist()
        found.append(Box(x0 - 1, y0 - 1, x1 + 1, y1 + 1))
    return found
