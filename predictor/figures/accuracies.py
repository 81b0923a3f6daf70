"""The all-way table in pictures: base against novel accuracy, and accuracy against the number of examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
    points = axes.transData.transform(places)
    texts = [axes.text(0, 0, name, fontsize=9, transform=None, va="bottom") for name in names]
    extents = [text.get_window_extent(canvas.get_renderer()) for text in texts]
    around, texts_drawn = axes.get_window_extent(), [text.get_window_extent() for text in other]
    frame = around.x0 + 2, around.y0 + 18, around.x1 - 2, around.y1 - 2
    bar_ends = axes.transData.transform(np.clip(bars, *ENDS).reshape(-1, 2)).reshape(-1, 4) + OUTWARDS
    obstacles = np.concatenate([bar_ends, np.reshape([extent.extents for extent in texts_drawn], (-1, 4))])
    boxes, is_far = place_labels(points, [(extent.width, extent.height) for extent in extents], frame, obstacles)
    to_axes = axes.transAxes.inverted().transform
    for text, box, needs_line, point in zip(texts, boxes, is_far, points, strict=True):
        text.set_transform(axes.transAxes)
        text.set_position(to_axes(box[:2]))
        if needs_line:
            ends = to_axes([point, np.clip(point, box[:2], box[2:])])
            axes.plot(ends[:, 0], ends[:, 1], color="#777777", linewidth=0.7, transform=axes.transAxes, zorder=2)


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
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
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
RADII = np.array([0, 6, 14, 26, 42, 62, 86, 114, 146])  # pixels beyond the point's own rim
RIM = 6.0  # pixels around a point that stay free
GAP = 2.0  # pixels around a label that stay free
OUTWARDS = np.array([-1, -1, 1, 1])  # by which a box grows by a pixel on each side
Boxes = NDArray[np.float64]  # (…, 4) left, bottom, right and top, in pixels


def place_labels(points: Any, sizes: Any, frame: Any, obstacles: Any = ()) -> tuple[Boxes, NDArray[np.bool_]]:
    """A box of each size (n, 2) beside its point (n, 2), and whether a line should lead to it (n,). Crowded points are
    served first; of the places that cover least, the nearest is taken, to the right first. obstacles: boxes that should
    stay uncovered too, such as error bars."""
    points, sizes = np.asarray(points, float), np.asarray(sizes, float)
    boxes, is_far = np.empty((len(points), 4)), np.empty(len(points), bool)
    taken = np.concatenate([np.hstack([points - RIM, points + RIM]), np.reshape(obstacles, (-1, 4))])
    turns = np.array([(number + 1) // 2 * (1 if number % 2 else -1) for number in range(ANGLES)])
    directions = np.stack([np.cos(2 * np.pi * turns / ANGLES), np.sin(2 * np.pi * turns / ANGLES)], 1)
    distance = (RADII[:, None] + np.abs(turns) / ANGLES).ravel()
    crowd = (np.abs(points[:, None] - points) < (90, 45)).all(2).sum(1)
    for number in np.argsort(-crowd, kind="stable").tolist():
        half = sizes[number] / 2
        middles = points[number] + directions * (RADII[:, None, None] + RIM + GAP + half)  # (radii, angles, 2)
        choices = np.concatenate([middles - half, middles + half], 2).reshape(-1, 4)
        wide = choices + GAP * OUTWARDS
        outside = overlaps(wide, wide) - overlaps(wide, np.asarray(frame, float))
        covered = overlaps(wide[:, None], taken).sum(1) + 10 * outside
        best = np.lexsort((distance, covered))[0]
        boxes[number], is_far[number] = choices[best], best >= 2 * ANGLES
        taken = np.concatenate([taken, choices[best : best + 1]])
    return boxes, is_far


def overlaps(first: Boxes, second: Boxes) -> NDArray[np.float64]:
    """Areas that boxes have in common."""
    sides = np.minimum(first[..., 2:], second[..., 2:]) - np.maximum(first[..., :2], second[..., :2])
    areas: NDArray[np.float64] = sides.clip(0).prod(-1)
    return areas
