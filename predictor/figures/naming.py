"""How a category and a method are called in a picture."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from predictor.protocol.method_key import key_of

GLYPH = re.compile(r"U\+([0-9A-F]{4,6})")


def readable(name: str) -> str:
    """The character itself for a category of the embedded glyphs, such as A for U+0041; other names as they are."""
    found = GLYPH.fullmatch(name)
    if found is None:
        return name
    character = chr(int(found[1], 16))
    is_shown = unicodedata.category(character)[0] in "LNPS" and character not in "$^_{}\\"  # these mean mathematics
    return character if is_shown else name


def short_name(row: Mapping[str, Any]) -> str:
    """Of the method of a table's row, with its share of D_large where several are measured."""
    share = f" {row['d_large']}" if key_of(row).is_by_share else ""
    return str(row["method"]).replace(" (activations)", "") + share
