"""Bars of `actstore bench`: the store beside other stores, one panel per measurement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from actstore.bench.measure import Result
from predictor.figures.bars import Bar, BarPanel, draw_bars
from predictor.figures.style import BLUE, GREY

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_contenders(results: Sequence[Result], title: str) -> Figure:
    """Results named '<measurement> <contender>', higher is better, the best first; ours are blue."""
    panels: dict[str, list[Result]] = {}
    for result in results:
        panels.setdefault(result.name.split(" ", 1)[0], []).append(result)
    return draw_bars([_panel(name, contest) for name, contest in panels.items()], title)


def _panel(measurement: str, contest: Sequence[Result]) -> BarPanel:
    bars = []
    for result in sorted(contest, key=lambda result: result.value, reverse=True):
        name = result.name.split(" ", 1)[1]
        note = f"{result.value:,.0f}" if result.value >= 1000 else f"{result.value:.3g}"
        bars.append(Bar(name, result.value, note, BLUE if name.startswith("actstore") else GREY))
    return BarPanel(f"{measurement}, higher is better", contest[0].unit, bars)
