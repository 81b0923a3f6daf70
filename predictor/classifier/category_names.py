"""What no category may be called: the commands, the library and the page of `ppa teach` go by this rule."""

from __future__ import annotations

from actstore.errors import InvalidInputError

UNKNOWN = "unknown"  # what is said of an image that no category fits


def is_reserved(name: str) -> bool:
    return name.strip().casefold() == UNKNOWN


def refuse_reserved(name: str) -> None:
    if is_reserved(name):
        raise InvalidInputError(f"{name!r} is what is said where no category fits; give the category another name")
