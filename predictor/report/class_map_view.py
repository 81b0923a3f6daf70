"""The class map as SVG, which report.js lets a reader move and enlarge."""

from __future__ import annotations

import json
from html import escape

import numpy as np

from predictor.figures.class_map import ClassMap
from predictor.figures.style import COLOURS, readable

SIDE = 1000  # units of the picture
MARGIN = 30


def class_map_view(found: ClassMap) -> str:
    """Every category a point at its mean's place; names come up on hover, and beside the points when enlarged."""
    places = np.asarray(found.means)
    low, high = places.min(0), places.max(0)
    scale = (SIDE - 2 * MARGIN) / max(float((high - low).max()), 1e-9)
    shown = (places - (low + high) / 2) * scale + SIDE / 2
    group_of = {member: number for number, group in enumerate(found.groups) for member in group}
    points = []
    order = sorted(range(len(shown)), key=lambda place: (place in group_of, place))  # groups lie on top
    for place in order:
        x, y = shown[place].tolist()
        kind = "novel" if place >= found.n_base else "base"
        colour = f' style="fill:{COLOURS[group_of[place]]}"' if place in group_of else ""
        points.append(
            f'<g class="{kind}" data-place="{place}" transform="translate({x:.1f} {SIDE - y:.1f})">'
            f'<circle r="4"{colour}></circle><text x="6" y="4">{escape(readable(found.names[place]))}</text></g>'
        )
    data = json.dumps(
        {"names": [_full(name) for name in found.names], "base": found.n_base, "nearest": found.nearest},
        ensure_ascii=False,
    ).replace("<", "\\u003c")  # so that no name can end the script element
    return (
        '<div class="map" id="class-map">'
        '<div class="tools"><button type="button" data-zoom="in" aria-label="enlarge">+</button>'
        '<button type="button" data-zoom="out" aria-label="reduce">−</button>'
        '<button type="button" data-zoom="all">all</button>'
        '<input type="search" placeholder="find a category" aria-label="find a category"></div>'
        f'<svg viewBox="0 0 {SIDE} {SIDE}" role="img" aria-label="map of the categories"><g class="world">'
        + "".join(points)
        + '</g></svg><p class="told" aria-live="polite">Move over a point, or tap it.</p></div>'
        f'<script type="application/json" id="class-map-data">{data}</script>'
    )


def _full(name: str) -> str:
    shown = readable(name)
    return name if shown == name else f"{shown} ({name})"
