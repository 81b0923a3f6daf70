"""The embedded data set: every category is a Unicode character, every image one drawing of it.

An image is a pure function of (seed, character, sample, distortion): no order, no files, nothing to download. It is the
ink of a face, black on white, cached once per process, then one affine resample. The stroke's weight varies because the
cached ink has soft edges: where the threshold lies on them decides how thick a line gets. The pixels may differ by a
grey level between versions of Pillow and FreeType.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from actstore.errors import InvalidInputError
from actstore.images.decode import ImageFacts
from actstore.images.image_set import ImageSet
from actstore.storage.atomic_file import storage_errors

FACES = tuple(
    f"DejaVu{family}{style}"
    for family, styles in (
        ("Sans", ("", "-Bold", "-BoldOblique", "-Oblique")),
        ("SansMono", ("", "-Bold", "-BoldOblique", "-Oblique")),
        ("Serif", ("", "-Bold", "-BoldItalic", "-Italic")),
    )
    for style in styles
)
_FILL = 0.68  # longer side of the ink over the side of the image, before the random scale
# the affine map of distortion 1; others are that many times as far from none
_DEGREES, _SHEAR, _SHIFT = 10.0, 0.12, 0.05  # largest rotation, shear, translation (share of the side)
_SHRINK, _GROW, _ASPECT = 0.18, 1.08, 0.08  # the ink is at least 0.82 times its usual size
_SOFTNESS = 0.03  # blur of the ink, share of its box
_THRESHOLD = (0.30, 0.56)  # low is bold, high is thin; a thin line's blurred peak stays above
_EDGE_GAIN = 2.5  # coverage rises from 0 to 1 over 1 / 2.5 of the soft edge: about a pixel
_INK_BOX = 0.86  # of the cached square; the rest is a margin for the blur
_PAPER, _INK, _NOISE = (205, 255), (0, 60), (2, 12)  # grey levels; noise of distortion 1
MOST_DISTORTION = 4.0


@cache
def face_file(face: str) -> Path:
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"
    if not path.exists():
        raise InvalidInputError(f"matplotlib ships no {path.name} at {path.parent}; reinstall matplotlib >= 3.9")
    return path


@lru_cache(maxsize=64)
def _font(face: str, em: int) -> ImageFont.FreeTypeFont:
    # the basic layout: the same on machines with and without libraqm
    return ImageFont.truetype(str(face_file(face)), em, layout_engine=ImageFont.Layout.BASIC)


def ink(character: str, face: str, em: int) -> Image.Image | None:
    """The character cut to its ink, white on black; None where it is blank."""
    font = _font(face, em)
    left, top, right, bottom = (int(edge) for edge in font.getbbox(character))
    canvas = Image.new("L", (max(1, right - left + 8), max(1, bottom - top + 8)))
    ImageDraw.Draw(canvas).text((4 - left, 4 - top), character, font=font, fill=255)
    box = canvas.getbbox()
    return None if box is None else canvas.crop(box)


def fit(image: Image.Image, side: int, box: int) -> Image.Image:
    """Ink scaled so that its longer side is `box`, centred on a black square of `side`."""
    scale = box / max(image.size)
    width, height = (max(1, round(edge * scale)) for edge in image.size)
    square = Image.new("L", (side, side))
    resized = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
    square.paste(resized, ((side - width) // 2, (side - height) // 2))
    return square


@lru_cache(maxsize=16_384)  # 12 faces of 1,365 characters; 3 KB each at size 32
def _soft_ink(character: str, face: str, side: int) -> Image.Image:
    drawn = ink(character, face, 2 * side)
    if drawn is None:
        raise InvalidInputError(f"character U+{ord(character):04X} is blank in {face}")
    box = round(_INK_BOX * side)
    return fit(drawn, side, box).filter(ImageFilter.GaussianBlur(_SOFTNESS * box))


def draw(character: str, random: np.random.Generator, size: int, distortion: float = 1.0) -> NDArray[np.uint8]:
    """One sample (size, size) in a random face with random affine, stroke, greys and noise."""
    draws = random.random(11).tolist()
    soft = _soft_ink(character, FACES[int(draws[10] * len(FACES))], round(1.25 * size))
    coefficients = _inverse_affine(draws[:6], soft.width, size, distortion)
    turned = soft.transform((size, size), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR)
    paper, black = _between(draws[7], _PAPER), _between(draws[8], _INK)
    # coverage, in place: 0 below the threshold, 1 above it, a ramp between
    grey = np.frombuffer(turned.tobytes(), np.uint8).astype(np.float32)
    grey -= 255 * _between(draws[6], _THRESHOLD)
    grey *= _EDGE_GAIN / 255
    grey += 0.5
    np.clip(grey, 0, 1, out=grey)
    grey *= black - paper
    grey += paper
    noise = random.standard_normal(size * size, np.float32)
    noise *= distortion * _between(draws[9], _NOISE)
    grey += noise
    return np.clip(grey, 0, 255, out=grey).astype(np.uint8).reshape(size, size)


def _inverse_affine(draws: list[float], ink_side: int, side: int, distortion: float) -> tuple[float, ...]:
    """Six numbers in [0, 1) -> (a, b, c, d, e, f) that map a point of the image to a point of the ink."""
    signed = [distortion * (2 * number - 1) for number in draws]
    angle, shear = math.radians(_DEGREES * signed[0]), _SHEAR * signed[1]
    scale = _FILL * _between(draws[2], (1 - distortion * _SHRINK, _GROW)) * side / (_INK_BOX * ink_side)
    wide, high = scale * (1 + _ASPECT * signed[3]), scale * (1 - _ASPECT * signed[3])
    cosine, sine = math.cos(angle), math.sin(angle)
    # image = rotation @ [[1, shear], [0, 1]] @ diag(wide, high) @ ink, both measured from their centres
    a, b = (sine * shear + cosine) / wide, (sine - cosine * shear) / wide  # the inverse, written out
    d, e = -sine / high, cosine / high
    x, y = side * (0.5 + _SHIFT * signed[4]), side * (0.5 + _SHIFT * signed[5])
    return a, b, ink_side / 2 - a * x - b * y, d, e, ink_side / 2 - d * x - e * y


def _between(number: float, limits: tuple[float, float]) -> float:
    return limits[0] + number * (limits[1] - limits[0])


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


def glyph_image(category: int, sample: int, seed: int, size: int = 32, distortion: float = 1.0) -> NDArray[np.uint8]:
    """One drawing (size, size), grey, of the category at this place in `glyph_categories()`."""
    character = _characters()[category]
    # seeded by code point, not by place: an image stays the same if the list is ever reordered
    return draw(character, np.random.default_rng([seed, ord(character), sample]), size, distortion)


@dataclass(frozen=True, slots=True)
class GlyphItem:
    """One image that is drawn when it is loaded."""

    id: str
    label: str
    category: int
    sample: int
    seed: int
    size: int
    distortion: float = 1.0

    def load(self, at_least: int | None = None) -> Image.Image:
        """Mode RGB, (size, size). `at_least` is there for the sake of files; a drawing has one size."""
        grey = glyph_image(self.category, self.sample, self.seed, self.size, self.distortion)
        return Image.fromarray(grey).convert("RGB")

    def load_with_facts(self) -> tuple[Image.Image, ImageFacts]:
        """A drawing has no file, so no size in bytes and no date."""
        return self.load(), ImageFacts(self.size, self.size)


def glyph_sets(
    classes: int = 1000, per_class: int = 40, val_per_class: int = 10, seed: int = 0, size: int = 32, *,
    distortion: float = 1.0,
) -> dict[str, ImageSet[GlyphItem]]:  # fmt: skip
    """Split name -> images, sorted by class and number; no "val" where val_per_class is 0.

    distortion: how far characters are turned, sheared, shrunk, moved and how noisy they are; with 1 a small network
    recognises 98% of 900, with 2.5 about three quarters.
    """
    if not SMALLEST <= size <= LARGEST:
        raise InvalidInputError(f"glyph size: expected {SMALLEST} to {LARGEST} pixels, got {size}")
    if not 0 <= distortion <= MOST_DISTORTION:
        raise InvalidInputError(f"glyph distortion: expected 0 to {MOST_DISTORTION:g}, got {distortion:g}")
    if not 1 <= per_class <= FIRST_VALIDATION_SAMPLE or val_per_class < 0 or seed < 0:
        raise InvalidInputError(
            f"expected 1 to {FIRST_VALIDATION_SAMPLE:,} images per class, 0 or more for validation and a seed of "
            f"0 or more, got {per_class}, {val_per_class} and {seed}"
        )
    names = {class_name(character): place for place, character in enumerate(glyph_categories(classes))}
    splits = {"train": (0, per_class), "val": (FIRST_VALIDATION_SAMPLE, val_per_class)}
    return {
        split: ImageSet(
            [
                GlyphItem(f"{name}/{number:04d}.png", name, names[name], first + number, seed, size, distortion)
                for name in sorted(names)
                for number in range(count)
            ],
            sorted(names),
            [],
        )
        for split, (first, count) in splits.items()
        if count
    }


def write_glyphs(
    out: str | Path,
    classes: int = 1000,
    per_class: int = 40,
    val_per_class: int = 10,
    seed: int = 0,
    size: int = 32,
    progress: Callable[[int], object] | None = None,
    distortion: float = 1.0,
) -> int:
    """Draw images of Unicode characters into class folders, for trials without any data.

    Images go to OUT/train/U+0041/0000.png and the like, and to OUT/val. Files that are there already are kept.

    Args:
        out: the folder.
        classes: how many characters.
        per_class: training images of each character.
        val_per_class: validation images of each character.
        seed: of the variations.
        size: pixels of a side.
        progress: is called with the number of further images that are done.
        distortion: how far characters are turned and shifted, and how strong the noise is; 0 leaves them as they are.

    Returns:
        How many images were written.

    Examples:
        >>> actstore.write_glyphs("glyphs", classes=3, per_class=2, val_per_class=1)
        9
    """
    written, out = 0, Path(out)
    for split, images in glyph_sets(classes, per_class, val_per_class, seed, size, distortion=distortion).items():
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
    item.load().convert("L").save(data, "PNG", compress_level=1)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    with storage_errors(path):
        try:
            partial.write_bytes(data.getvalue())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
    return True
