"""Bars of `ppa bench-inference`: every measurement, and its peer as a mark on the same line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from predictor.figures.bars import Bar, BarPanel, draw_bars
from predictor.figures.style import BLUE, GREY, ORANGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH = re.compile(r",? batch \d+")
COLOURS = {"search": ORANGE, "backbone": GREY}  # by kind; a parametric classifier is blue
Result = Mapping[str, Any]


def draw_inference(results: Sequence[Result], title: str = "Inference") -> Figure:
    """results: objects {name, value, unit, peer, peer_value, ratio, kind}; the last four may be None.

    A panel for each unit and batch size, which is read from the end of the names.
    """
    panels: dict[tuple[str, str], list[Bar]] = {}
    for one in results:
        found = BATCH.search(one["name"])
        panels.setdefault((one["unit"], found[0].strip(", ") if found else ""), []).append(_bar(one))
    has_peer = any(one.get("peer_value") is not None for one in results)
    explained = "\nbars: what was measured; marks: what it is compared with" if has_peer else ""
    return draw_bars([BarPanel(batch or unit, unit, bars) for (unit, batch), bars in panels.items()], title + explained)


def _bar(one: Result) -> Bar:
    note = f"{one['value']:,.4g}"
    if one.get("ratio") is not None and one.get("peer"):
        note += f"   {one['ratio']:.3g} × {one['peer']}"
    colour = COLOURS.get(one.get("kind") or "", BLUE)
    return Bar(BATCH.sub("", one["name"]), float(one["value"]), note, colour, one.get("peer_value"))
