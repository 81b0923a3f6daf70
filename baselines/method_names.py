"""The names of methods, one for each wherever one is asked for; other names for them are answered with it."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from actstore.errors import InvalidInputError

# what a method is called elsewhere -> its name here
OTHER_NAMES = {
    "nearest-neighbour": "nn",
    "nearest-neighbor": "nn",
    "knn": "nn",
    "imprinting": "imprint",
    "fine-tuned": "finetune",
    "fine-tune": "finetune",
    "prototype": "class-mean",
    "ncm": "class-mean",
    "protonet": "prototypical",
}


def parse_methods(text: str, known: Collection[str], groups: Collection[str] = ("none",)) -> list[str]:
    """Names with commas between them; none for `none`. groups: names of several or of none, such as all."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known and name not in groups:
            raise InvalidInputError(f"no method {name!r}; {_meant(name, known)}known: {', '.join([*groups, *known])}")
    if "none" in names and len(names) > 1:
        raise InvalidInputError(f"none stands for no method at all, got {text!r}; leave it or the others out")
    return [] if names == ["none"] else names


def _meant(name: str, known: Collection[str]) -> str:
    other = OTHER_NAMES.get(name.lower())
    close = [other] if other in known else difflib.get_close_matches(name.lower(), known, n=1)
    return f"did you mean {close[0]}? " if close else ""
