"""The all-way table in pictures: base against novel accuracy, and accuracy against the number of examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, pi, sin
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.figures.style import GREY, family_style, new_figure, new_panels, short_name, tidy
from predictor.protocol.results import MethodKey, key_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 50, 70, 80, 90, 95, 98, 99, 99.5, 99.8)
ENDS = (0.05, 99.95)  # where a logit scale ends; what lies beyond is drawn there
MIDDLE = (10, 90)  # accuracies inside are drawn to a linear scale
LEVELS = (1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98)  # of the harmonic mean
NAME_WIDTH = 30.0  # pixels of "H 90" at the 100 dpi of a figure before it is saved
SHOTS_PANELS = {
    "top1_few": "novel top-1 (%)", "top1_large": "base top-1 (%)", "harmonic_mean": "harmonic mean of both (%)",
}  # fmt: skip
DASHED = ("child", "imprint-base-rows", "oracle-linear", "simple-shot")  # told from another method of the same colour
Point = tuple[float, float]
Records = Sequence[Mapping[str, Any]]  # rows of the all-way table


def draw_methods(records: Records, shots: str) -> Figure:
    """Base against novel accuracy of all methods with this number of shots.

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
        steep, flat = (np.linspace(logit(start), logit(other), 1000) for start, other in ((high, low), (left, right)))
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
        Box(extent.x0, extent.y0, extent.x1, extent.y1) for extent in (text.get_window_extent() for text in other)
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
    boxes = []
    for ends in bars:
        (x0, y0), (x1, y1) = axes.transData.transform(np.clip(np.array(ends), *ENDS)).tolist()
        boxes.append(Box(x0 - 1, y0 - 1, x1 + 1, y1 + 1))
    return boxes


def draw_curves(records: Records, shots: str) -> Figure:
    """Base against novel accuracy of each method as the constant on its novel scores varies: a ring where it stands
    without a constant, a point where calibration put it. A method that takes no examples is a cross."""
    rows = [row for row in records if row["shots"] in (shots, "all") and key_of(row).share in ("100%", "1%")]
    figure = new_figure(10, 6.2)
    axes = figure.subplots()
    for row in rows:
        method = key_of(row)
        colour, marker = family_style(method.key)
        is_ours, at = method.key == "phi2", ([row["top1_large"]], [row["top1_few"]])
        if method.is_calibrated:
            axes.plot(*at, marker, color=colour, markersize=10, zorder=5)
        elif row["shots"] == "all":
            axes.plot(*at, "x", color=colour, markersize=8, mew=2, label=short_name(row))
        else:
            line = "--" if method.key in DASHED else ":" if method.share == "1%" else "-"
            curve = np.array(row["curve"], float).reshape(-1, 2).T
            axes.plot(*curve, line, color=colour, linewidth=3.2 if is_ours else 1.4, zorder=4 if is_ours else 2,
                      label=short_name(row))  # fmt: skip
            axes.plot(*at, marker, color=colour, mfc="white", mew=1.6, markersize=8, zorder=5)
    axes.plot([], [], "o", color=GREY, mfc="white", mew=1.6, markersize=8, label="as it is")
    axes.plot([], [], "o", color=GREY, markersize=10, label="calibrated")
    axes.set_xlabel("images of known categories that are recognised (base top-1, %)")
    axes.set_ylabel("images of new categories that are recognised (novel top-1, %)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    tidy(axes)
    axes.set_title(f"New categories from {shots} example{'s' * (shots != '1')} each: one curve per method")
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure


def draw_shots(records: Records) -> Figure:
    """Accuracy against the number of examples. Methods that take no support are level."""
    counts = sorted({int(row["shots"]) for row in records if row["shots"] != "all"})
    lines: dict[MethodKey, list[Mapping[str, Any]]] = {}
    for row in records:
        lines.setdefault(key_of(row), []).append(row)
    figure, panels = new_panels(12.6, 5.6, "examples of each novel category", *SHOTS_PANELS.values())
    for panel, (key, label) in zip(panels, SHOTS_PANELS.items(), strict=True):
        for method, rows in lines.items():
            _plot(panel, method, rows, key)
        set_accuracy_axis(panel, "y", [float(row[key]) for row in records], label)
        panel.set_xticks(counts)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.suptitle("Accuracy against the number of examples, all-way (bars: 95% confidence)")
    return figure


def _plot(panel: Any, method: MethodKey, rows: Records, key: str) -> None:
    colour, marker = family_style(method.key)
    style = "--" if method.key in DASHED else {"100%": "-", "10%": "--"}.get(method.share, ":")
    name = short_name(rows[0])
    if rows[0]["shots"] == "all":
        level = "--" if method.key in DASHED else ":"
        panel.axhline(rows[0][key], color=colour, linestyle=level, linewidth=1, label=name)
        return
    ordered = sorted(rows, key=lambda row: int(row["shots"]))
    values = np.array([float(row[key]) for row in ordered])
    widths = np.array([row.get(f"{key}_ci95") or 0.0 for row in ordered])
    drawn, low, high = (np.clip(points, *ENDS) for points in (values, values - widths, values + widths))
    panel.errorbar(
        [int(row["shots"]) for row in ordered], drawn, yerr=[drawn - low, high - drawn], color=colour, marker=marker,
        mfc=colour if method.is_calibrated or not method.is_phi else "white", linestyle=style,
        linewidth=2 if method.is_calibrated else 1.3, markersize=6, label=name, capsize=2, elinewidth=0.8,
    )  # fmt: skip


def set_accuracy_axis(axes: Any, which: str, values: Sequence[float], name: str) -> list[float]:
    """Set scale, limits, ticks and label of the axis "x" or "y"; the values as they can be drawn on it."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis = getattr(axes, f"{which}axis")
    set_limits = getattr(axes, f"set_{which}lim")
    if min(values) >= MIDDLE[0] and max(values) <= MIDDLE[1]:
        spread = max(max(values) - min(values), 1.0)
        set_limits(min(values) - 0.15 * spread, max(values) + 0.2 * spread)
        axis.set_label_text(name)
        return list(values)
    drawn = np.clip(values, *ENDS)
    getattr(axes, f"set_{which}scale")("function", functions=(logit, from_logit))
    places = logit(drawn)
    margin = 0.12 * max(float(np.ptp(places)), 0.5)
    set_limits(*from_logit(np.array([places.min() - margin, places.max() + margin])).tolist())
    axis.set_major_locator(FixedLocator(TICKS))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_label_text(f"{name}, logit scale")
    return [float(value) for value in drawn]


def logit(percent: Any) -> Any:
    share = np.clip(np.asarray(percent, float) / 100, 1e-5, 1 - 1e-5)
    return np.log(share / (1 - share))


def from_logit(value: Any) -> Any:
    return 100 / (1 + np.exp(-np.asarray(value, float)))


ANGLES = 24
RADII = (0, 6, 14, 26, 42, 62, 86, 114, 146)  # pixels beyond the point's own rim
RIM = 6.0  # pixels around a point that stay free
GAP = 2.0  # pixels around a label that stay free


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """Area in common."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(0.0, width) * max(0.0, height)

    def outside(self, frame: Box) -> float:
        """Area that sticks out of the frame."""
        return (self.right - self.left) * (self.top - self.bottom) - self.overlap(frame)


@dataclass(frozen=True)
class Placed:
    """A label's box; is_far: whether a line should lead to its point."""

    box: Box
    is_far: bool


def place_labels(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    frame: Box,
    obstacles: Sequence[Box] = (),
) -> list[Placed]:
    """A box of each size beside its point, all in pixels. Crowded points are served first; of the places that cover
    least, the nearest is taken. obstacles: what else should stay uncovered, such as error bars."""
    taken = [*(Box(x - RIM, y - RIM, x + RIM, y + RIM) for x, y in points), *obstacles]
    placed: dict[int, Placed] = {}
    for number in sorted(range(len(points)), key=lambda one: (-_crowd(points, one), one)):
        choices = _choices(points[number], sizes[number])
        best = min(choices, key=lambda choice: _cost(choice[1].box, choice[0], taken, frame))[1]
        placed[number] = best
        taken.append(best.box)
    return [placed[number] for number in range(len(points))]


def _crowd(points: Sequence[tuple[float, float]], number: int) -> int:
    x, y = points[number]
    return sum(abs(x - other[0]) < 90 and abs(y - other[1]) < 45 for other in points)


def _choices(point: tuple[float, float], size: tuple[float, float]) -> list[tuple[float, Placed]]:
    """(distance, place) around a point, to the right first."""
    (x, y), (width, height) = point, size
    choices = []
    for radius in RADII:
        for number in range(ANGLES):
            turn = ((number + 1) // 2) * (1 if number % 2 else -1)
            dx, dy = cos(2 * pi * turn / ANGLES), sin(2 * pi * turn / ANGLES)
            reach = radius + RIM + GAP
            middle_x = x + dx * (reach + width / 2)
            middle_y = y + dy * (reach + height / 2)
            box = Box(middle_x - width / 2, middle_y - height / 2, middle_x + width / 2, middle_y + height / 2)
            choices.append((radius + abs(turn) / ANGLES, Placed(box, radius > RADII[1])))
    return choices


def _cost(box: Box, distance: float, taken: Sequence[Box], frame: Box) -> tuple[float, float]:
    wide = Box(box.left - GAP, box.bottom - GAP, box.right + GAP, box.top + GAP)
    covered = sum(wide.overlap(other) for other in taken) + 10 * wide.outside(frame)
    return covered, distance
