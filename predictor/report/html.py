"""Pieces of HTML from plain data; everything that comes from outside is escaped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from actstore.images.html_page import data_address
from predictor.figures.class_map import ClassMap
from predictor.figures.style import COLOURS, readable

MAP_SIDE, MAP_MARGIN = 1000, 30  # units of the class map
Cell = Any  # str, number, None, or (what is shown, what is sorted by)


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def section(name: str, title: str, *content: str) -> str:
    """Empty where there is no content."""
    inside = "\n".join(part for part in content if part)
    return f'<section id="{name}"><h2>{escape(title)}</h2>\n{inside}\n</section>' if inside else ""


def table(
    name: str, header: Sequence[str], rows: Sequence[Sequence[Cell]], marks: Sequence[Mapping[str, str]] = ()
) -> str:
    """Sortable by its header. marks: for each row attributes such as {"data-shots": "1", "class": "ours"}."""
    heads = "".join(
        f'<th scope="col"><button type="button">{escape(title)}</button></th>' for title in header
    )  # a button can be reached by keyboard
    lines = []
    for number, row in enumerate(rows):
        extra = marks[number] if number < len(marks) else {}
        attributes = "".join(f' {key}="{escape(value)}"' for key, value in extra.items())
        lines.append(f"<tr{attributes}>{''.join(_cell(cell) for cell in row)}</tr>")
    return (
        f'<div class="scroll"><table id="{name}" class="sortable"><thead><tr>{heads}</tr></thead>\n'
        "<tbody>\n" + "\n".join(lines) + "\n</tbody></table></div>"
    )


def facts(rows: Sequence[tuple[str, Any]]) -> str:
    """Names and values, those that are None left out."""
    lines = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in rows if value is not None
    )
    return f"<dl>{lines}</dl>" if lines else ""


def picture(path: Path, title: str) -> str:
    """A PNG inside the page; a click shows it at full size."""
    address = data_address(path.read_bytes(), "png")
    return (
        f'<figure><button type="button" class="picture" aria-label="enlarge: {escape(title)}">'
        f'<img alt="{escape(title)}" src="{address}"></button>'
        f"<figcaption>{escape(title)}</figcaption></figure>"
    )


def listing(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>" if items else ""


def code(text: str) -> str:
    return f"<pre><code>{escape(text)}</code></pre>"


def class_map_view(shown: ClassMap) -> str:
    """The class map as SVG, which report.js lets a reader move and enlarge: every category a point at its mean's place;
    names come up on hover, and beside the points when enlarged."""
    places = np.asarray(shown.means)
    low, high = places.min(0), places.max(0)
    scale = (MAP_SIDE - 2 * MAP_MARGIN) / max(float((high - low).max()), 1e-9)
    at = (places - (low + high) / 2) * scale + MAP_SIDE / 2
    group_of = {member: number for number, group in enumerate(shown.groups) for member in group}
    points = []
    order = sorted(range(len(at)), key=lambda place: (place in group_of, place))  # groups lie on top
    for place in order:
        x, y = at[place].tolist()
        kind = "novel" if place >= shown.n_base else "base"
        colour = f' style="fill:{COLOURS[group_of[place]]}"' if place in group_of else ""
        points.append(
            f'<g class="{kind}" data-place="{place}" transform="translate({x:.1f} {MAP_SIDE - y:.1f})">'
            f'<circle r="4"{colour}></circle><text x="6" y="4">{escape(readable(shown.names[place]))}</text></g>'
        )
    data = json.dumps(
        {"names": [_full(name) for name in shown.names], "base": shown.n_base, "nearest": shown.nearest},
        ensure_ascii=False,
    ).replace("<", "\\u003c")  # so that no name can end the script element
    return (
        '<div class="map" id="class-map">'
        '<div class="tools"><button type="button" data-zoom="in" aria-label="enlarge">+</button>'
        '<button type="button" data-zoom="out" aria-label="reduce">−</button>'
        '<button type="button" data-zoom="all">all</button>'
        '<input type="search" placeholder="find a category" aria-label="find a category"></div>'
        f'<svg viewBox="0 0 {MAP_SIDE} {MAP_SIDE}" role="img" aria-label="map of the categories"><g class="world">'
        + "".join(points)
        + '</g></svg><p class="told" aria-live="polite">Move over a point, or tap it.</p></div>'
        f'<script type="application/json" id="class-map-data">{data}</script>'
    )


def _full(name: str) -> str:
    shown = readable(name)
    return name if shown == name else f"{shown} ({name})"


def _cell(cell: Cell) -> str:
    shown, key = cell if isinstance(cell, tuple) else (cell, cell)
    if shown is None:
        return "<td></td>"
    number = isinstance(key, int | float) and not isinstance(key, bool)
    text = f"{shown:.2f}" if isinstance(shown, float) else str(shown)
    attributes = f' class="number" data-sort="{key}"' if number else ""
    return f"<td{attributes}>{escape(text)}</td>"
