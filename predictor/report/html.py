"""Pieces of HTML from plain data; everything that comes from outside is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from actstore.images.html_page import data_address

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


def _cell(cell: Cell) -> str:
    shown, key = cell if isinstance(cell, tuple) else (cell, cell)
    if shown is None:
        return "<td></td>"
    number = isinstance(key, int | float) and not isinstance(key, bool)
    text = f"{shown:.2f}" if isinstance(shown, float) else str(shown)
    attributes = f' class="number" data-sort="{key}"' if number else ""
    return f"<td{attributes}>{escape(text)}</td>"
