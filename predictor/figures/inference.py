"""Bars of `ppa bench-inference`: every measurement, and its peer as a mark on the same line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from predictor.figures.style import BLUE, ORANGE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOG_FROM = 30  # largest over smallest value
BATCH = re.compile(r",? batch \d+")
Result = Mapping[str, Any]


def draw_inference(results: Sequence[Result]) -> Figure:
    """results: objects {name, value, unit, peer, peer_value, ratio}; the last three may be None.

    A panel for each unit and batch size, which is read from the end of the names.
    """
    panels: dict[tuple[str, str], list[Result]] = {}
    for one in results:
        found = BATCH.search(one["name"])
        panels.setdefault((one["unit"], found[0].strip(", ") if found else ""), []).append(one)
    heights = [len(panel) + 1 for panel in panels.values()]
    figure = new_figure(11, 0.9 + 0.34 * sum(heights) + 0.45 * len(panels))
    all_axes = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axes, ((unit, batch), shown) in zip(all_axes, panels.items(), strict=True):
        _draw_panel(axes, shown, unit)
        axes.set_title(batch or unit, fontsize=10, loc="left")
    has_peer = any(one.get("peer_value") is not None for one in results)
    figure.suptitle("Inference" + (": bars what was measured, marks what it is compared with" if has_peer else ""))
    return figure


def _draw_panel(axes: Any, results: Sequence[Result], unit: str) -> None:
    places = range(len(results))
    values = [float(one["value"]) for one in results]
    peers = {place: float(one["peer_value"]) for place, one in enumerate(results) if one.get("peer_value") is not None}
    axes.barh(places, values, color=BLUE, height=0.7)
    axes.plot(list(peers.values()), list(peers), "D", color=ORANGE, mec="black", markersize=6, linestyle="none")
    axes.set_yticks(places, [BATCH.sub("", one["name"]) for one in results], fontsize=9)
    axes.set_ylim(len(results) - 0.4, -0.6)
    known = [*values, *peers.values()]
    if min(known) > 0 and max(known) / min(known) > LOG_FROM:
        axes.set_xscale("log")
        axes.set_xlim(min(known) / 2, max(known) * (max(known) / min(known)) ** 0.45)
        axes.set_xlabel(f"{unit}, log scale")
    else:
        axes.set_xlim(0, max(known) * 1.5)
        axes.set_xlabel(unit)
    for place, one in enumerate(results):
        end = max(values[place], peers.get(place, 0.0))
        axes.annotate(_note(one), (end, place), xytext=(9, 0), textcoords="offset points", va="center", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _note(one: Result) -> str:
    text = f"{one['value']:,.4g}"
    if one.get("ratio") is None or not one.get("peer"):
        return text
    return f"{text}   {one['ratio']:.3g} × {one['peer']}"
