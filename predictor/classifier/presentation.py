"""Results as people see them: in a notebook, and on a page of photos with thumbnails and bars, which loads nothing from
elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from PIL import Image

from actstore.images.html_page import data_address, html_page, jpeg_bytes
from actstore.images.image_set import ImageItem
from actstore.storage.atomic_file import as_utf8, write_atomic
from predictor.protocol.results import Table

if TYPE_CHECKING:
    from predictor.classifier.predictions import Guess

SIDE = 320  # pixels of a thumbnail's longer side: sharp at twice the density of a screen
Standing = Literal["plain", "right", "wrong", "unknown"]


def html_result(table: Table, before: Sequence[str] = (), after: Sequence[str] = ()) -> str:
    """A table in a notebook, with paragraphs around it."""
    said = ["".join(f"<p>{escape(text)}</p>" for text in texts) for texts in (before, after)]
    return f"{said[0]}{table.to_html()}{said[1]}"


@dataclass(frozen=True)
class Bar:
    """share: 0 to 1. standing: right or wrong where the truth is known."""

    name: str
    share: float
    standing: Standing = "plain"


@dataclass(frozen=True)
class Card:
    """A photo. thumbnail: JPEG bytes, see `thumbnail`. note: what is said in bold, such as its category."""

    image: str
    thumbnail: bytes
    note: str
    bars: Sequence[Bar]
    standing: Standing = "plain"


Section = tuple[str, Sequence[Card]]


def thumbnail(image: Image.Image) -> bytes:
    """JPEG of a photo in RGB."""
    small = image.copy()
    small.thumbnail((SIDE, SIDE), Image.Resampling.BICUBIC, reducing_gap=2.0)
    return jpeg_bytes(small)


def photo_card(image: ImageItem, note: str, guesses: Sequence[Guess], standing: Standing, truth: str = "") -> Card:
    """truth: the category that it is, where that is known."""
    bars = [
        Bar(guess.shown, guess.probability,
            "right" if guess.category == truth else "wrong" if standing == "wrong" and not place else "plain")
        for place, guess in enumerate(guesses)
    ]  # fmt: skip
    return Card(image.path.as_posix(), thumbnail(image.load()), note, bars, standing)


def write_sheet(path: Path, title: str, about: str, sections: Sequence[Section], more: str = "") -> None:
    """sections: a heading (empty: none) and its cards. more: HTML that stands before them, such as a table."""
    write_atomic(path, as_utf8(sheet_page(title, about, sections, more)))


def sheet_page(title: str, about: str, sections: Sequence[Section], more: str = "") -> str:
    here = files(__package__)
    content = "\n".join(_section(heading, cards) for heading, cards in sections)
    count = sum(len(cards) for _, cards in sections)
    find = '<div class="find"><input id="find" type="search" aria-label="find a photo or a category" '
    find += 'placeholder="a name or a category"><output id="found"></output></div>'
    parts = (more, find if count > 1 else "", content)
    return html_page(title, about, "\n".join(parts), here / "sheet.css", here / "sheet.js", "actstore photo sheet")


def confusion_html(names: Sequence[str], columns: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """counts: for each name how many of its images were taken for each column; the columns begin with the names."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    lines = []
    for place, (name, row) in enumerate(zip(names, counts, strict=True)):
        cells = "".join(_count(count, place == other) for other, count in enumerate(row))
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    head = f'<tr><th scope="col">is, taken for →</th>{heads}</tr>'
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{"".join(lines)}</tbody></table></div>'


def _count(count: int, is_right: bool) -> str:
    kind = "" if not count else ' class="diagonal"' if is_right else ' class="off"'
    return f"<td{kind}>{count or ''}</td>"


def _section(heading: str, cards: Sequence[Card]) -> str:
    if not cards:
        return ""
    title = f"<h2>{escape(heading)}</h2>\n" if heading else ""
    return f'{title}<ul class="cards">\n' + "\n".join(_card(card) for card in cards) + "\n</ul>"


def _card(card: Card) -> str:
    words = " ".join([card.image, card.note, *(bar.name for bar in card.bars)]).lower()
    kind = ' class="is-unknown"' if card.standing == "unknown" else ""
    bars = "".join(_bar(bar, place == 0) for place, bar in enumerate(card.bars))
    return (
        f'<li{kind} data-words="{escape(words)}"><img alt="" loading="lazy" src="{data_address(card.thumbnail)}">'
        f'<h3>{escape(card.image)}</h3><p class="note {card.standing}">{escape(card.note)}</p>'
        f'<ul class="bars">{bars}</ul></li>'
    )


def _bar(bar: Bar, is_first: bool) -> str:
    kinds = [kind for kind in ("first" if is_first else "", bar.standing if bar.standing != "plain" else "") if kind]
    attribute = f' class="{" ".join(kinds)}"' if kinds else ""
    return (
        f'<li{attribute} style="--share:{100 * bar.share:.1f}%"><span>{escape(bar.name)}</span>'
        f'<span class="share">{bar.share:.1%}</span></li>'
    )
