"""Kinds of files by their first bytes: which of them Pillow can read here, and the names of those that it cannot."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module

from PIL import Image, features

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
