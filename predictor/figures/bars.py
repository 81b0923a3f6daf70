"""Bars of measurements, one panel below the other: the one way in which benchmarks are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from predictor.figures.style import BLUE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOG_FROM = 30  # largest over smallest value


@dataclass(frozen=True)
class Bar:
    """note: written behind the bar. mark: what the value is compared with, on the same line."""

    name: str
    value: float
    note: str
    colour: str = BLUE
    mark: float | None = None


@dataclass(frozen=True)
class BarPanel:
    title: str
    unit: str
    bars: Sequence[Bar]


def draw_bars(panels: Sequence[BarPanel], title: str) -> Figure:
    heights = [len(panel.bars) + 1 for panel in panels]
    figure = new_figure(11, 0.9 + 0.34 * sum(heights) + 0.45 * len(panels))
    all_axes = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw_panel(axes, panel)
    figure.suptitle(title)
    return figure


def _draw_panel(axes: Any, panel: BarPanel) -> None:
    bars, places = panel.bars, range(len(panel.bars))
    marks = {place: bar.mark for place, bar in enumerate(bars) if bar.mark is not None}
    axes.barh(places, [bar.value for bar in bars], color=[bar.colour for bar in bars], height=0.7)
    axes.plot(list(marks.values()), list(marks), "D", color="white", mec="black", markersize=6, linestyle="none")
    axes.set_yticks(places, [bar.name for bar in bars], fontsize=9)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    _set_scale(axes, [*(bar.value for bar in bars), *marks.values()], panel.unit)
    for place, bar in enumerate(bars):
        end = max(bar.value, marks.get(place, 0.0))
        axes.annotate(bar.note, (end, place), xytext=(9, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_title(panel.title, fontsize=10, loc="left")
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
