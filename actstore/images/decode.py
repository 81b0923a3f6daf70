"""Bytes of an image file -> RGB pixels, or one clear reason why not, such as a format, known by its first bytes, that
Pillow cannot read here. Never half an image."""

from __future__ import annotations

import io
import re
import struct
import sys
import zlib
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError, features

from actstore.errors import UnreadableImageError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF", "HEIF")  # by content, not by ending
_HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_PHONE = {
    "HEIF": ("a HEIC photo", "pillow-heif: pip install pillow-heif, or the extra `actstore[heif]`"),
    "AVIF": ("an AVIF photo", "Pillow 11.3 or newer: pip install -U pillow"),
}
_OTHERS = {
    b"%PDF": "a PDF document",
    b"8BPS": "a Photoshop document",
    b"gimp xcf": "a GIMP document",
    b"\x00\x00\x00\x0cJXL ": "a JPEG XL image",
    b"\xff\x0a": "a JPEG XL image",
    b"\x00\x00\x00\x0cjP  ": "a JPEG 2000 image",
    b"v/1\x01": "an OpenEXR image",
    b"#?RADIANCE": "a Radiance HDR image",
    b"\x00\x00\x01\x00": "an icon",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "a gzip archive",
    b"\x1a\x45\xdf\xa3": "a video",
    b"RIFF": "a video or sound",  # WEBP, which begins so too, is read
    b"<svg": "an SVG drawing",
    b"<?xml": "an XML or SVG file",
    b"<!doctype html": "a web page",
    b"<html": "a web page",
    b"version https://git-lfs": "a pointer of Git LFS, whose image was not fetched",
}


@cache
def readable_formats() -> tuple[str, ...]:
    """Those of FORMATS that Pillow reads, by itself or with the plugins that are installed."""
    for plugin, registration in (("pillow_heif", "register_heif_opener"), ("pillow_avif", None)):
        try:
            module = import_module(plugin)
        except ImportError:
            continue
        if registration is not None:
            getattr(module, registration)()
    Image.init()
    has_avif = features.check("avif") or bool(sys.modules.get("pillow_avif"))
    return tuple(name for name in FORMATS if name in Image.OPEN and (name != "AVIF" or has_avif))


def why_unidentified(data: bytes) -> str:
    """What to say of bytes that none of the formats recognises."""
    kind = _phone_format(data)
    if kind is not None:
        what, needs = _PHONE[kind]
        return f"damaged or truncated: {what}" if kind in readable_formats() else f"{what}, which needs {needs}"
    if data[4:8] == b"ftyp":
        return "a video (MP4 or QuickTime), not an image"
    start = data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    for magic, name in _OTHERS.items():
        if start[: len(magic)].lower() == magic.lower() or data.startswith(magic):
            return f"{name}, not an image of a known kind; save it as JPEG or PNG"
    return f"not an image of a known kind ({len(data):,} bytes, beginning with {data[:8]!r})"


def _phone_format(data: bytes) -> str | None:
    """HEIF or AVIF, by the brands in the first box of the file."""
    if data[4:8] != b"ftyp":
        return None
    size = min(int.from_bytes(data[:4], "big"), 256)
    brands = [data[8:12], *(data[place : place + 4] for place in range(16, size, 4))]
    if any(brand in (b"avif", b"avis") for brand in brands):
        return "AVIF"
    return "HEIF" if any(brand in _HEIC for brand in brands) else None


# what Pillow's readers raise on damaged files
_BROKEN = (OSError, SyntaxError, ValueError, IndexError, KeyError, TypeError, EOFError, struct.error, zlib.error)

_EXIF, _ORIGINAL, _DATETIME = 0x8769, 0x9003, 0x0132  # tags of EXIF
_SUBFILE, _BITS, _PHOTOMETRIC, _DNG_VERSION = 254, 258, 262, 50706  # tags of a TIFF


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What a file says of its image: pixels when upright, bytes, and when the camera says that it was taken."""

    width: int
    height: int
    bytes: int | None = None
    date: datetime | None = None


def decode(data: bytes, name: str, at_least: int | None = None) -> Image.Image:
    """The image in mode RGB, upright, transparency on white, the first frame of an animation.

    at_least: the image will be scaled so that its shorter side has this many pixels. A JPEG may then be
    decoded at 1/2, 1/4 or 1/8 of its size, several times faster, as long as no side gets shorter than that.
    Without it every pixel is decoded. Safe to call from several threads.
    """
    return decode_with_facts(data, name, at_least)[0]


def decode_with_facts(data: bytes, name: str, at_least: int | None = None) -> tuple[Image.Image, ImageFacts]:
    """See `decode`; and what is known of the image once its file is open."""
    if not data:
        raise UnreadableImageError(f"{name}: the file is empty")
    ImageFile.LOAD_TRUNCATED_IMAGES = False  # other libraries set it for all: half-grey images would pass for whole
    try:
        return _decode(data, at_least)
    except UnreadableImageError as error:
        raise UnreadableImageError(f"{name}: {error}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        # Pillow's message has the count: "Image size (250000000 pixels) exceeds limit of ..."
        pixels = re.search(r"\d+", str(error))
        raise UnreadableImageError(f"{name}: {_too_large(int(pixels.group()) if pixels else 0)}") from None
    except UnidentifiedImageError:
        raise UnreadableImageError(f"{name}: {why_unidentified(data)}") from None
    except MemoryError:
        raise UnreadableImageError(f"{name}: not enough memory to decode it") from None
    except _BROKEN as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableImageError(f"{name}: damaged or truncated: {reason}") from None


def _decode(data: bytes, at_least: int | None) -> tuple[Image.Image, ImageFacts]:
    with Image.open(io.BytesIO(data), formats=readable_formats()) as image:
        if image.format == "TIFF" and _is_raw(image, data):
            raise UnreadableImageError("its first image is only a preview, as in a camera's raw file; save it as JPEG")
        # Pillow only warns up to twice its limit
        if Image.MAX_IMAGE_PIXELS is not None and image.width * image.height > Image.MAX_IMAGE_PIXELS:
            raise UnreadableImageError(_too_large(image.width * image.height))
        if at_least is not None and image.format == "JPEG":
            _draft(image, at_least)
        image.load()
        decoded = _to_rgb(_upright(image), _grey_range(image))
        return decoded, ImageFacts(decoded.width, decoded.height, len(data), _taken(image))


def _is_raw(image: Any, data: bytes) -> bool:
    """Raw files are TIFFs whose first image is a thumbnail: DNG, CR2, and those that mark it as reduced (NEF, ARW)."""
    return _DNG_VERSION in image.tag_v2 or data[8:10] == b"CR" or bool(image.tag_v2.get(_SUBFILE, 0) & 1)


def _grey_range(image: Any) -> tuple[float, float]:
    """The values of black and white where grey has up to 16 bits: in a TIFF it may have 12, or 0 may be white."""
    tags = image.tag_v2 if image.format == "TIFF" else {}
    white = float((1 << min(16, tags.get(_BITS, (16,))[0])) - 1)
    return (white, 0.0) if tags.get(_PHOTOMETRIC) == 0 else (0.0, white)


def _too_large(pixels: int) -> str:
    return f"{pixels:,} pixels, more than {Image.MAX_IMAGE_PIXELS:,} are refused"


def _draft(image: Image.Image, at_least: int) -> None:
    """Let the JPEG decoder shrink by the largest power of two that leaves both sides long enough."""
    for divisor in (8, 4, 2):
        if min(image.size) // divisor >= at_least:  # the decoder rounds up: never shorter than this
            # in its own mode: a conversion by the decoder would miss the inversion of Adobe's CMYK
            image.draft(image.mode, (image.width // divisor, image.height // divisor))
            return


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except (*_BROKEN, UserWarning):  # broken metadata, whole pixels
        return image


def _taken(image: Image.Image) -> datetime | None:
    """EXIF's DateTimeOriginal, else DateTime; the metadata were read for the sake of the orientation."""
    try:
        exif = image.getexif()
        original = exif.get_ifd(_EXIF).get(_ORIGINAL) if _EXIF in exif else None
        value = str(original or exif.get(_DATETIME, "")).strip("\0 ")
        return datetime.strptime(value, "%Y:%m:%d %H:%M:%S") if value else None
    except (*_BROKEN, UserWarning):
        return None


def _to_rgb(image: Image.Image, grey_range: tuple[float, float]) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _to_8_bits(image, grey_range).convert("RGB")
    if image.mode in ("LAB", "HSV"):
        raise UnreadableImageError(
            f"its colours are in {image.mode}, expected RGB, CMYK or grey; save it as JPEG or PNG"
        )
    if image.has_transparency_data:
        opaque = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(opaque, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _to_8_bits(image: Image.Image, grey_range: tuple[float, float]) -> Image.Image:
    """16 bits scaled to 8; floats and 32-bit integers have no fixed range, so theirs is stretched."""
    values = np.asarray(image).astype(np.float64)  # (height, width)
    low, high = float(values.min()), float(values.max())
    if not np.isfinite([low, high]).all():
        raise UnreadableImageError("its pixels are not finite numbers")
    if image.mode != "F" and low >= 0 and high <= 65535:
        low, high = grey_range
    span = high - low
    scaled = (values - low) * (255 / (span if abs(span) > 1e-12 else 1e-12))
    return Image.fromarray(np.rint(scaled).astype(np.uint8))
