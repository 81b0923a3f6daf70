"""Results as people see them: names of categories, tables in a notebook, and a page of photos with thumbnails and bars,
which loads nothing from elsewhere.

`n01440764` is shown as tench, `U+0041` as A, and any category as what its user calls it. Names that a user gave are
kept in the classifier's `about`; the others are known lists. A category's own name, by which it is stored, learnt and
removed, never changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from PIL import Image

from actstore.errors import InvalidInputError
from actstore.images.image_set import ImageItem
from actstore.images.opening import data_address, html_page, jpeg_bytes
from actstore.storage.atomic_file import as_utf8, write_atomic
from predictor.figures.style import known_display
from predictor.protocol.results import Table

if TYPE_CHECKING:
    from predictor.classifier.activation_classifier import ActivationClassifier
    from predictor.classifier.predictions import Guess

KEY = "display"
_CODE = re.compile(r"(?:n\d{8}|U\+[0-9A-F]{4,6})([ \t])")
SIDE = 320  # pixels of a thumbnail's longer side: sharp at twice the density of a screen
Standing = Literal["plain", "right", "wrong", "unknown"]


def display(classifier: ActivationClassifier, name: str) -> str:
    named = classifier.about.get(KEY, {})
    return str(named[name]) if name in named else known_display(name)


def displays(classifier: ActivationClassifier) -> dict[str, str]:
    """Of every category that is shown otherwise than it is called."""
    shown_as = {name: display(classifier, name) for name in classifier.categories}
    return {name: shown for name, shown in shown_as.items() if shown != name}


def set_displays(classifier: ActivationClassifier, names: Mapping[str, str]) -> None:
    """Category -> what it is to be shown as; its own name, or nothing, takes a display name away. All or none."""
    for name, shown in names.items():
        if name not in classifier.categories:
            known = ", ".join(classifier.categories[:5])
            raise InvalidInputError(f"no category is named {name!r}; there are: {known}, …")
        if not isinstance(shown, str) or not shown.isprintable():
            raise InvalidInputError(f"a display name must be printable text, got {shown!r}")
    shown_as = {**classifier.about.get(KEY, {}), **names}
    classifier.about[KEY] = {name: shown for name, shown in shown_as.items() if shown}


def forget_display(classifier: ActivationClassifier, name: str, new: str | None = None) -> None:
    """Of a category that was removed; renamed, it keeps what it is shown as under its new name."""
    shown_as = dict(classifier.about.get(KEY, {}))
    shown = shown_as.pop(name, None)
    if shown is not None and new is not None:
        shown_as[new] = shown
    if shown_as or KEY in classifier.about:
        classifier.about[KEY] = shown_as


def read_displays(path: Path) -> dict[str, str]:
    """A JSON object, or lines of a category and its display name with a tab, a comma or a space between them."""
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise InvalidInputError(f"no file of names at {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} cannot be read as text: {error}") from None
    return _from_json(path, text) if text.lstrip().startswith("{") else _from_lines(path, text)


def _from_json(path: Path, text: str) -> dict[str, str]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path} must be a JSON object of names, or lines of text: {error}") from None
    if not all(isinstance(shown, str) for shown in names.values()):
        raise InvalidInputError(f"{path} must be a JSON object whose values are all text")
    return dict(names)


def _from_lines(path: Path, text: str) -> dict[str, str]:
    names: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        is_code = _CODE.match(line.strip())  # what follows may have commas: 'n01440764 tench, Tinca tinca'
        marks = (is_code[1],) if is_code else ("\t", ",", " ")
        mark = next((mark for mark in marks if mark in line.strip()), None)
        name, _, shown = line.strip().partition(mark or "\n")
        if mark is None or not shown.strip() or name in names:
            why = "is there twice" if name in names else "has no display name"
            raise InvalidInputError(
                f"{path}, line {number}: {name!r} {why}; expected a category and what it is shown as, such as "
                "'n01440764 tench'"
            )
        names[name.strip()] = shown.strip()
    if not names:
        raise InvalidInputError(f"{path} holds no names; expected lines such as 'n01440764 tench'")
    return names


def counted(count: int, noun: str, plural: str = "") -> str:
    """1 example, 2 examples."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


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
