"""Images by what a user says on the command line: a path, or the embedded glyphs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from actstore.errors import InvalidInputError
from actstore.images.finding import find_images
from actstore.images.glyphs import GlyphSet
from actstore.images.image_set import ImageSet, Loadable

GLYPHS = re.compile(r"glyphs(?::(\d+)x(\d+)x(\d+))?")
EXPECTED = "expected a folder, a tar, a list (.csv, .parquet), or glyphs:CLASSESxTRAINxVAL such as glyphs:1000x40x10"


def open_images(
    text: str, ground_truth: Path | None = None, synsets: Path | None = None
) -> Mapping[str, ImageSet[Loadable]]:
    """Split name -> images of `glyphs`, `glyphs:1000x40x10` (classes, train and val images of each) or a path.

    A folder that is called glyphs is read as `./glyphs`. ground_truth, synsets: see `find_images`.
    """
    matched = GLYPHS.fullmatch(text)
    if matched is not None:
        return GlyphSet(*(int(number) for number in matched.groups() if number is not None)).image_sets()
    if text.startswith("glyphs:"):
        raise InvalidInputError(f"{EXPECTED}, got {text!r}")
    if not text:
        raise InvalidInputError(f"no images named; {EXPECTED}")
    return find_images(Path(text), ground_truth, synsets)
