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
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
Card = dict[str, Any]


def display(classifier: ActivationClassifier, name: str) -> str:
    named = classifier.about.get(KEY, {})
    return str(named[name]) if name in named else known_display(name)


def displays(classifier: ActivationClassifier) -> dict[str, str]:
    """Of every category that is shown otherwise than it is called."""
    return {name: shown for name in classifier.categories if (shown := display(classifier, name)) != name}


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
    if not text.lstrip().startswith("{"):
        return _from_lines(path, text)
    try:
        names: dict[str, str] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path} must be a JSON object of names, or lines of text: {error}") from None
    if not all(isinstance(shown, str) for shown in names.values()):
        raise InvalidInputError(f"{path} must be a JSON object whose values are all text")
    return names


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


def photo_card(
    image: ImageItem, note: str, guesses: Sequence[Guess], standing: Literal["plain", "right", "wrong", "unknown"],
    truth: str = "",
) -> Card:  # fmt: skip
    """A photo in a page. note: what is said in bold, such as its category. truth: the category that it is,
    where that is known."""
    kinds = ["right" if guess.category == truth else "wrong" if standing == "wrong" and not place else ""
             for place, guess in enumerate(guesses)]  # fmt: skip
    small, name = image.load(), image.path.as_posix()
    small.thumbnail((SIDE, SIDE), Image.Resampling.BICUBIC, reducing_gap=2.0)
    return {
        "image": name, "address": data_address(jpeg_bytes(small)), "note": note, "standing": standing,
        "bars": list(zip(guesses, kinds, strict=True)),
        "words": " ".join([name, note, *(guess.shown for guess in guesses)]).lower(),
    }  # fmt: skip


def write_sheet(
    path: Path, title: str, about: str, sections: Sequence[tuple[str, Sequence[Card]]], **more: Any
) -> None:
    """sections: a heading (empty: none) and its cards. more: what sheet.html shows before them."""
    content, here = render("classifier", "sheet.html", sections=sections, **more), files(__package__)
    page = html_page(title, about, content, here / "sheet.css", here / "sheet.js", "actstore photo sheet")
    write_atomic(path, as_utf8(page))


def render(folder: str, name: str, **context: Any) -> str:
    """A template of a folder of this package."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("predictor", folder), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    return environment.get_template(name).render(context)
