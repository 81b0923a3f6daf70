"""Results as people see them: columns of text, a table in a notebook, a data frame, and a page of photos.

The page has thumbnails and bars, and loads nothing from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image

from actstore.errors import InvalidInputError
from actstore.images.html_page import data_address, html_page, jpeg_bytes
from actstore.images.image_set import ImageItem
from actstore.storage.atomic_file import as_utf8, write_atomic

if TYPE_CHECKING:
    import pandas

    from predictor.classifier.predictions import Guess

SIDE = 320  # pixels of a thumbnail's longer side: sharp at twice the density of a screen
Standing = Literal["plain", "right", "wrong", "unknown"]


def text_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns aligned: numbers right, text left."""
    columns = [_aligned(name, [row[place] for row in rows]) for place, name in enumerate(header)]
    return "\n".join("  ".join(cells).rstrip() for cells in zip(*columns, strict=True))


def html_table(
    header: Sequence[str], rows: Sequence[Sequence[Any]], before: Sequence[str] = (), after: Sequence[str] = ()
) -> str:
    """before, after: paragraphs."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    said = ["".join(f"<p>{escape(text)}</p>" for text in texts) for texts in (before, after)]
    return f"{said[0]}<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{said[1]}"


def to_pandas(records: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    try:
        import pandas
    except ModuleNotFoundError:
        raise InvalidInputError("a data frame needs pandas: pip install 'actstore[analysis]'") from None
    return pandas.DataFrame(list(records))


def _aligned(name: str, values: Sequence[Any]) -> list[str]:
    cells = [name, *map(str, values)]
    width = max(map(len, cells))
    is_numeric = bool(values) and all(isinstance(value, int | float) for value in values)
    return [cell.rjust(width) if is_numeric else cell.ljust(width) for cell in cells]


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
