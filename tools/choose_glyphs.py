"""Which characters become categories: in all 12 faces, and told apart by eye under the augmentation.

Two characters are compared centred and scaled to one size, in an upright sans and serif face. Their
difference is the largest difference of grey at any one place after a slight blur, so that an accent
counts as much as a whole letter. It is taken at the best match over small shifts, bolder strokes,
rotation and slant: what the augmentation can undo does not make two categories.

Not part of the package, which ships the outcome:
    python -m tools.choose_glyphs > actstore/images/glyph_characters.txt
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from actstore.images.glyphs import FACES, class_name, face_file, fit, ink

TIERS = (0.355, 0.28, 0.20, 0.12, 0.06)  # least difference within the first tier, the first two, ...
_COMPARED = ("DejaVuSans", "DejaVuSerif")
_NO_INK_OF_THEIR_OWN = {"Mn", "Me", "Mc", "Zs", "Zl", "Zp", "Cf", "Cc", "Co", "Cn"}
_EM, _SIDE, _BOX, _FINE = 96, 32, 26, 2  # pixels; shapes are varied at _FINE times the side
_SMALLEST = 0.2  # of the em: smaller ink is a dot or a tick
_LOOKALIKES = "0ϵ϶ϸշიᴈᴻᵷȿ△⸣⸥"  # of O Є Э Þ 2 о 3 И б ʂ Δ ˥ ˩: closer to the eye than to the measure
_ALIKE = 0.85  # cosine; of the pairs just above it, 2% differ by less than the first tier asks
_PAIRS = 2048  # compared at a time: 2 MB, stays in cache


def choose_characters() -> list[str]:
    """All categories, in an order whose every prefix is a good set; takes about 15 s.

    Tier after tier of falling difference, each in a fixed random order: the first 1,000 are easier to
    tell apart than the second, and look like a random draw of scripts and symbols.
    """
    characters = drawable_characters()
    difference = smallest_differences(characters)
    _halve_within_letters(difference, characters)
    chosen: list[int] = []
    for least in TIERS:
        allowed = [least == TIERS[-1] or not _is_a_variant(character) for character in characters]
        tier = _add_distinct(difference, chosen, least, np.array(allowed))
        chosen += sorted(tier, key=lambda index: _scrambled(characters[index]))
    return [characters[index] for index in chosen]


def drawable_characters() -> list[str]:
    """Characters of all 12 faces that leave a mark of their own, by code point."""
    from matplotlib.ft2font import FT2Font

    maps = [set(FT2Font(str(face_file(face))).get_charmap()) for face in FACES]
    common = [chr(code) for code in sorted(set.intersection(*maps))]
    return [character for character in common if _is_drawable(character)]


def _is_drawable(character: str) -> bool:
    if unicodedata.category(character) in _NO_INK_OF_THEIR_OWN:
        return False
    drawn = [ink(character, face, _EM) for face in FACES]
    return all(one is not None and max(one.size) >= _SMALLEST * _EM for one in drawn)


def _is_a_variant(character: str) -> bool:
    """Whether weight or proportion, which the augmentation varies, is all that makes it differ from another."""
    is_bar_or_block = "\u2580" <= character <= "\u2595"
    return is_bar_or_block or character in _LOOKALIKES or "HEAVY" in unicodedata.name(character, "")


def _halve_within_letters(difference: NDArray[np.float32], characters: Sequence[str]) -> None:
    """In place: cases and styles of one letter (W and w, a and superscript a) must differ twice as much."""
    letters = np.array([unicodedata.normalize("NFKC", character).casefold() for character in characters])
    difference[letters[:, None] == letters] /= 2


def smallest_differences(characters: Sequence[str]) -> NDArray[np.float32]:
    """(n, n) in [0, 1], the least of the compared faces (L and └ are one in sans); 0 on the diagonal."""
    count = len(characters)
    lowest = np.full((count, count), 255, np.uint8)
    for face in _COMPARED:
        shapes = np.stack([_shapes(character, face) for character in characters], axis=1)  # (variant, n, side, side)
        plain = shapes[0]
        for varied in shapes:
            left, right = _alike_pairs(plain, varied)
            lowest[left, right] = np.minimum(lowest[left, right], _differences(plain, varied, left, right))
    difference = np.minimum(lowest, lowest.T).astype(np.float32) / np.float32(255)
    np.fill_diagonal(difference, 0)
    return difference


def _shapes(character: str, face: str) -> NDArray[np.uint8]:
    """(variant, side, side): as it is, bold, bolder, turned both ways, slanted, narrow; slightly blurred."""
    drawn = ink(character, face, _EM)
    assert drawn is not None
    fine = fit(drawn, _SIDE * _FINE, _BOX * _FINE)
    centre = _SIDE * _FINE / 2
    slant = (1, 0.2, -0.2 * centre, 0, 1, 0)
    bold = _thicker(fine, 1)
    variants = [
        fine,
        bold,
        _thicker(bold, 2),
        fine.rotate(12, Image.Resampling.BILINEAR),
        fine.rotate(-12, Image.Resampling.BILINEAR),
        fine.transform(fine.size, Image.Transform.AFFINE, slant, Image.Resampling.BILINEAR),
        fine.resize((fine.width * 4 // 5, fine.height), Image.Resampling.BILINEAR),
    ]
    return np.stack([np.asarray(_normal(variant).filter(ImageFilter.GaussianBlur(1.2))) for variant in variants])


def _thicker(image: Image.Image, by: int) -> Image.Image:
    """Strokes wider by so many fine pixels on every side: maxima over rows, then columns."""
    grey = np.asarray(image)
    for axis in (0, 1):
        grey = np.maximum.reduce([np.roll(grey, step, axis) for step in range(-by, by + 1)])
    return Image.fromarray(grey)


def _normal(image: Image.Image) -> Image.Image:
    return fit(image.crop(image.getbbox()), _SIDE, _BOX)


def _alike_pairs(plain: NDArray[np.uint8], varied: NDArray[np.uint8]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pairs worth a closer look: cosine of all pixels above _ALIKE."""
    left, right = (_unit_rows(shapes.reshape(len(shapes), -1)) for shapes in (plain, varied))
    cosine = left @ right.T
    np.fill_diagonal(cosine, 0)
    first, second = np.nonzero(cosine > _ALIKE)
    return first, second


def _unit_rows(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    values = rows.astype(np.float32)
    unit: NDArray[np.float32] = values / np.linalg.norm(values, axis=1, keepdims=True)
    return unit


def _differences(
    plain: NDArray[np.uint8], varied: NDArray[np.uint8], left: NDArray[np.intp], right: NDArray[np.intp]
) -> NDArray[np.uint8]:
    """(pairs,) largest difference at any pixel, at the best of five shifts."""
    padded = np.pad(varied, ((0, 0), (1, 1), (1, 1)))
    lowest = np.full(len(left), 255, np.uint8)
    for start in range(0, len(left), _PAIRS):
        part = slice(start, start + _PAIRS)
        one, other = plain[left[part]], padded[right[part]]
        for y, x in ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2)):
            moved = other[:, y : y + _SIDE, x : x + _SIDE]
            gap = np.maximum(one, moved) - np.minimum(one, moved)
            np.minimum(lowest[part], gap.reshape(len(gap), -1).max(axis=1), out=lowest[part])
    return lowest


def _add_distinct(
    difference: NDArray[np.float32], chosen: Sequence[int], least: float, allowed: NDArray[np.bool_]
) -> list[int]:
    """Greedy by code point: those allowed that differ by `least` from all that are chosen and added so far."""
    nearest = difference[list(chosen)].min(axis=0) if chosen else np.full(len(difference), np.inf, np.float32)
    added = []
    for index in np.flatnonzero(allowed).tolist():
        if nearest[index] >= least:
            added.append(index)
            nearest = np.minimum(nearest, difference[index])
    return added


def _scrambled(character: str) -> bytes:
    """A fixed random order that does not depend on which other characters are in it."""
    return hashlib.sha256(character.encode()).digest()


if __name__ == "__main__":
    print("\n".join(map(class_name, choose_characters())))
