"""How categories are shown: `n01440764` is tench, `U+0041` is A, and any category what its user calls it.

Names that a user gave are kept in the classifier's `about`; the others are known lists. A category's own name, by
which it is stored, learnt and removed, never changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from actstore.errors import InvalidInputError
from predictor.classifier.classifier import Classifier
from predictor.figures.style import known_display

KEY = "display"
_CODE = re.compile(r"(?:n\d{8}|U\+[0-9A-F]{4,6})([ \t])")


def display(classifier: Classifier, name: str) -> str:
    named = classifier.about.get(KEY, {})
    return str(named[name]) if name in named else known_display(name)


def displays(classifier: Classifier) -> dict[str, str]:
    """Of every category that is shown otherwise than it is called."""
    shown_as = {name: display(classifier, name) for name in classifier.categories}
    return {name: shown for name, shown in shown_as.items() if shown != name}


def set_displays(classifier: Classifier, names: Mapping[str, str]) -> None:
    """Category -> what it is to be shown as; its own name, or nothing, takes a display name away. All or none."""
    for name, shown in names.items():
        if name not in classifier.categories:
            known = ", ".join(classifier.categories[:5])
            raise InvalidInputError(f"no category is named {name!r}; there are: {known}, …")
        if not shown.isprintable():
            raise InvalidInputError(f"a display name must be printable text, got {shown!r}")
    shown_as = {**classifier.about.get(KEY, {}), **names}
    classifier.about[KEY] = {name: shown for name, shown in shown_as.items() if shown}


def forget_display(classifier: Classifier, name: str, new: str | None = None) -> None:
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
