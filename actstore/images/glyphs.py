"""The embedded data set: every category is a Unicode character, every image one drawing of it.

An image is a pure function of (seed, character, sample): no order, no files, nothing to download.
The pixels may differ by a grey level between versions of Pillow and FreeType.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from actstore.errors import InvalidInputError
from actstore.images.decode import ImageFacts
from actstore.images.glyph_drawing import draw
from actstore.images.image_set import ImageSet
from actstore.storage.atomic_file import storage_errors

FIRST_VALIDATION_SAMPLE = 1_000_000  # validation never shares a drawing with training, however many those are
SMALLEST, LARGEST = 8, 512  # pixels of a side


def class_name(character: str) -> str:
    """U+0041 for A. Sorted as text these are sorted by code point, which is the order of the classes."""
    return f"U+{ord(character):04X}"


def glyph_categories(count: int | None = None) -> list[str]:
    """The first `count` characters of the shipped list; all of it by default."""
    characters = _characters()
    if count is None:
        return list(characters)
    if not 1 <= count <= len(characters):
        raise InvalidInputError(f"glyph categories: expected 1 to {len(characters)}, got {count}")
    return list(characters[:count])


@cache
def _characters() -> tuple[str, ...]:
    text = (files("actstore.images") / "glyph_characters.txt").read_text("ascii")
    return tuple(chr(int(line.removeprefix("U+"), 16)) for line in text.split())


def glyph_image(category: int, sample: int, seed: int, size: int = 32) -> NDArray[np.uint8]:
    """One drawing (size, size), grey, of the category at this place in `glyph_categories()`."""
    character = _characters()[category]
    # seeded by code point, not by place: an image stays the same if the list is ever reordered
    return draw(character, np.random.default_rng([seed, ord(character), sample]), size)


@dataclass(frozen=True, slots=True)
class GlyphItem:
    """One image that is drawn when it is loaded."""

    id: str
    label: str
    category: int
    sample: int
    seed: int
    size: int

    def load(self, at_least: int | None = None) -> Image.Image:
        """Mode RGB, (size, size). `at_least` is there for the sake of files; a drawing has one size."""
        grey = glyph_image(self.category, self.sample, self.seed, self.size)
        return Image.fromarray(grey).convert("RGB")

    def load_with_facts(self) -> tuple[Image.Image, ImageFacts]:
        """A drawing has no file, so no size in bytes and no date."""
        return self.load(), ImageFacts(self.size, self.size)


@dataclass(frozen=True)
class GlyphSet:
    """A source of images like a folder: `image_sets()["train"].items[0].load()`."""

    classes: int = 1000
    per_class: int = 40
    val_per_class: int = 10
    seed: int = 0
    size: int = 32

    def __post_init__(self) -> None:
        glyph_categories(self.classes)
        if not SMALLEST <= self.size <= LARGEST:
            raise InvalidInputError(f"glyph size: expected {SMALLEST} to {LARGEST} pixels, got {self.size}")
        if not 1 <= self.per_class <= FIRST_VALIDATION_SAMPLE or self.val_per_class < 0 or self.seed < 0:
            raise InvalidInputError(
                f"expected 1 to {FIRST_VALIDATION_SAMPLE:,} images per class, 0 or more for validation and a seed of "
                f"0 or more, got {self.per_class}, {self.val_per_class} and {self.seed}"
            )

    def image_sets(self) -> dict[str, ImageSet[GlyphItem]]:
        """Split name -> images, sorted by class and number; no "val" where val_per_class is 0."""
        characters = glyph_categories(self.classes)
        order = sorted(range(self.classes), key=lambda category: class_name(characters[category]))
        names = [class_name(characters[category]) for category in order]
        splits = {"train": (0, self.per_class), "val": (FIRST_VALIDATION_SAMPLE, self.val_per_class)}
        return {
            split: ImageSet(
                [
                    GlyphItem(f"{name}/{number:04d}.png", name, category, first + number, self.seed, self.size)
                    for name, category in zip(names, order, strict=True)
                    for number in range(count)
                ],
                names,
                [],
            )
            for split, (first, count) in splits.items()
            if count
        }


def write_glyphs(
    out: Path, *numbers: int, progress: Callable[[int], object] | None = None, **named_numbers: int
) -> int:
    """Write out/train/U+0041/0000.png and out/val/...; files that are there are kept. Returns how many were written.

    numbers: those of a `GlyphSet`. progress: is told how many more images are done, whether written or kept.
    """
    written = 0
    for split, images in GlyphSet(*numbers, **named_numbers).image_sets().items():
        for label in images.classes:
            with storage_errors(out / split / label):
                (out / split / label).mkdir(parents=True, exist_ok=True)
        items = iter(images.items)
        while batch := list(islice(items, 100)):
            written += sum(_write(item, out / split) for item in batch)
            if progress is not None:
                progress(len(batch))
    return written


def _write(item: GlyphItem, folder: Path) -> bool:
    """Whole or not at all: written beside its name, then renamed. Not flushed: it can be drawn again."""
    path = folder / item.id
    if path.exists():
        return False
    data = io.BytesIO()
    Image.fromarray(glyph_image(item.category, item.sample, item.seed, item.size)).save(data, "PNG", compress_level=1)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    with storage_errors(path):
        try:
            partial.write_bytes(data.getvalue())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
    return True
