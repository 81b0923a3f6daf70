"""How a character becomes an image: ink of a face, cached once per process, then one affine resample.

Black ink on white paper. The stroke's weight varies because the cached ink has soft edges: where the
threshold lies on them decides how thick a line gets.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from actstore.errors import InvalidInputError

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
_DEGREES, _SHEAR, _SHIFT = 10.0, 0.12, 0.05  # largest rotation, shear, translation (share of the side)
_SCALE, _ASPECT = (0.82, 1.08), 0.08
_SOFTNESS = 0.03  # blur of the ink, share of its box
_THRESHOLD = (0.30, 0.56)  # low is bold, high is thin; a thin line's blurred peak stays above
_EDGE_GAIN = 2.5  # coverage rises from 0 to 1 over 1 / 2.5 of the soft edge: about a pixel
_INK_BOX = 0.86  # of the cached square; the rest is a margin for the blur
_PAPER, _INK, _NOISE = (205, 255), (0, 60), (2, 12)  # grey levels


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


def draw(character: str, random: np.random.Generator, size: int) -> NDArray[np.uint8]:
    """One sample (size, size) in a random face with random affine, stroke, greys and noise."""
    draws = random.random(11).tolist()
    soft = _soft_ink(character, FACES[int(draws[10] * len(FACES))], round(1.25 * size))
    coefficients = _inverse_affine(draws[:6], soft.width, size)
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
    noise *= _between(draws[9], _NOISE)
    grey += noise
    return np.clip(grey, 0, 255, out=grey).astype(np.uint8).reshape(size, size)


def _inverse_affine(draws: list[float], ink_side: int, side: int) -> tuple[float, ...]:
    """Six numbers in [0, 1) -> (a, b, c, d, e, f) that map a point of the image to a point of the ink."""
    signed = [2 * number - 1 for number in draws]
    angle, shear = math.radians(_DEGREES * signed[0]), _SHEAR * signed[1]
    scale = _FILL * _between(draws[2], _SCALE) * side / (_INK_BOX * ink_side)
    wide, high = scale * (1 + _ASPECT * signed[3]), scale * (1 - _ASPECT * signed[3])
    cosine, sine = math.cos(angle), math.sin(angle)
    # image = rotation @ [[1, shear], [0, 1]] @ diag(wide, high) @ ink, both measured from their centres
    a, b = (sine * shear + cosine) / wide, (sine - cosine * shear) / wide  # the inverse, written out
    d, e = -sine / high, cosine / high
    x, y = side * (0.5 + _SHIFT * signed[4]), side * (0.5 + _SHIFT * signed[5])
    return a, b, ink_side / 2 - a * x - b * y, d, e, ink_side / 2 - d * x - e * y


def _between(number: float, limits: tuple[float, float]) -> float:
    return limits[0] + number * (limits[1] - limits[0])
