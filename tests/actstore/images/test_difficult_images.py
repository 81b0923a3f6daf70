"""Image files as phones, scanners and the web leave them in folders: each is read right, or refused by its name."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from actstore.errors import UnreadableImageError
from actstore.images import decode
from actstore.images.opening import find_images

WIDTH, HEIGHT = 40, 24
Y, X = np.mgrid[:HEIGHT, :WIDTH]
GREY = (X * 5 + Y).astype(np.uint8)  # 0 to 218, differs in all four corners
COLOUR = np.stack([GREY, 255 - GREY, np.full_like(GREY, 90)], -1)
GREY3 = np.repeat(GREY[..., None], 3, -1)
ORIENTATION = 0x0112
TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {  # how the upright picture is stored for each orientation
    1: lambda p: p, 2: lambda p: p[:, ::-1], 3: lambda p: p[::-1, ::-1], 4: lambda p: p[::-1],
    5: lambda p: p.swapaxes(0, 1), 6: lambda p: np.rot90(p), 7: lambda p: np.rot90(p, 2).swapaxes(0, 1),
    8: lambda p: np.rot90(p, -1),
}  # fmt: skip


def encoded(image: Image.Image | np.ndarray, kind: str, **options: Any) -> bytes:
    data = io.BytesIO()
    (Image.fromarray(np.ascontiguousarray(image)) if isinstance(image, np.ndarray) else image).save(
        data, kind, **options
    )
    return data.getvalue()


def turned(kind: str, orientation: int = 6, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(TURNS[orientation](COLOUR), kind, exif=exif, **options)


def png16(values: np.ndarray, colour: int) -> bytes:
    """A PNG of 16 bits a sample, which Pillow itself does not write in colour."""
    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)), (b"IDAT", zlib.compress(rows)),
             (b"IEND", b"")]  # fmt: skip
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def tiff(pixels: bytes, bits: int, photometric: int, samples: int = 1, order: str = "<", more: Any = ()) -> bytes:
    """An uncompressed TIFF by hand: 12 and 16 bits, either byte order, any tag."""
    count = 10 + len(more)
    after = 8 + 2 + 12 * count + 4
    of_bits = bits if samples == 1 else after
    tags = [
        (256, 3, 1, WIDTH), (257, 3, 1, HEIGHT), (258, 3, samples, of_bits), (259, 3, 1, 1),
        (262, 3, 1, photometric), (273, 4, 1, after + 16), (277, 3, 1, samples), (278, 3, 1, HEIGHT),
        (279, 4, 1, len(pixels)), (284, 3, 1, 1), *more,
    ]  # fmt: skip
    data = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HIH", 42, 8, count)
    for tag, kind, length, value in sorted(tags):
        packed = struct.pack(f"{order}HH", value, 0) if kind == 3 and length == 1 else struct.pack(f"{order}I", value)
        data += struct.pack(f"{order}HHI", tag, kind, length) + packed
    return (data + bytes(4) + struct.pack(f"{order}8H", *[bits] * 8)) + pixels


def twelve_bits() -> bytes:
    values = (GREY.astype(np.uint16) * 16).reshape(-1, 2)
    packed = np.stack([values[:, 0] >> 4, (values[:, 0] & 15) << 4 | values[:, 1] >> 8, values[:, 1] & 255], -1)
    return tiff(packed.astype(np.uint8).tobytes(), 12, 1)


def with_alpha(pixels: np.ndarray) -> np.ndarray:
    """Opaque, but for the left half, which is not there at all."""
    alpha = np.where(X < WIDTH // 2, 0, 255).astype(np.uint8)
    return np.dstack([pixels, alpha])


def on_white(pixels: np.ndarray) -> np.ndarray:
    return np.where((X < WIDTH // 2)[..., None], 255, pixels)


def frames(kind: str, **options: Any) -> bytes:
    others = [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ("blue", "green")]
    return encoded(COLOUR, kind, save_all=True, append_images=others, **options)


def cmyk() -> Image.Image:
    return Image.fromarray(COLOUR).convert("CMYK")


def wide16() -> np.ndarray:
    return GREY.astype(np.uint16) * 257


def colour16() -> np.ndarray:
    return COLOUR.astype(np.uint16) * 257


def palette() -> bytes:
    image = Image.fromarray(np.where(X < WIDTH // 2, 0, 1).astype(np.uint8), mode=None).convert("L")
    image = image.convert("P")
    image.putpalette([9, 9, 9, 200, 30, 60])
    return encoded(image, "PNG", transparency=0)


# name in the folder -> (its bytes, the picture it must give, by how much the mean may differ)
READ: dict[str, tuple[Callable[[], bytes], np.ndarray, float]] = {
    **{f"turned{n}.jpg": (lambda n=n: turned("JPEG", n, quality=95), COLOUR, 4) for n in TURNS},  # type: ignore[misc]
    "turned.png": (lambda: turned("PNG"), COLOUR, 0),
    "turned.webp": (lambda: turned("WEBP", lossless=True), COLOUR, 0),
    "turned.tif": (lambda: encoded(TURNS[6](COLOUR), "TIFF", tiffinfo={ORIENTATION: 6}), COLOUR, 0),
    "broken-exif.jpg": (lambda: encoded(COLOUR, "JPEG", quality=95, exif=b"Exif\0\0II*\0\xff\xff\xff\xff"), COLOUR, 4),
    "progressive.JPG": (lambda: encoded(COLOUR, "JPEG", quality=95, progressive=True), COLOUR, 4),
    "grey.jfif": (lambda: encoded(GREY, "JPEG", quality=95), GREY3, 4),
    "phone-with-second-picture.jpg": (lambda: frames("MPO", quality=95), COLOUR, 4),
    "motion-photo.jpg": (lambda: encoded(COLOUR, "JPEG", quality=95) + b"\0\0\0\x18ftypmp42" + bytes(999), COLOUR, 4),
    "png-by-content.jpg": (lambda: encoded(COLOUR, "PNG"), COLOUR, 0),
    "cmyk.jpg": (lambda: encoded(cmyk(), "JPEG", quality=95), COLOUR, 6),
    "cmyk.tiff": (lambda: encoded(cmyk(), "TIFF"), COLOUR, 3),
    "grey16.png": (lambda: encoded(wide16(), "PNG"), GREY3, 0),
    "colour16.png": (lambda: png16(colour16(), 2), COLOUR, 1),
    "grey-alpha16.png": (lambda: png16(with_alpha(GREY).astype(np.uint16) * 257, 4), on_white(GREY3), 1),
    "grey16-little-endian.tif": (lambda: tiff(wide16().tobytes(), 16, 1), GREY3, 0),
    "grey16-big-endian.tif": (lambda: tiff(wide16().astype(">u2").tobytes(), 16, 1, order=">"), GREY3, 0),
    "grey16-white-is-zero.tif": (lambda: tiff((65535 - wide16()).tobytes(), 16, 0), GREY3, 0),
    "grey12.tif": (twelve_bits, GREY3, 1),
    "colour16.tif": (lambda: tiff(colour16().tobytes(), 16, 2, samples=3), COLOUR, 1),
    "float.tif": (lambda: encoded(GREY.astype(np.float32), "TIFF"), GREY3 * (255 / GREY.max()), 1),
    "alpha.png": (lambda: encoded(with_alpha(COLOUR), "PNG"), on_white(COLOUR), 0),
    "alpha.webp": (lambda: encoded(with_alpha(COLOUR), "WEBP", lossless=True), on_white(COLOUR), 0),
    "grey-alpha.png": (lambda: encoded(Image.fromarray(with_alpha(GREY)), "PNG"), on_white(GREY3), 0),
    "palette-with-a-hole.png": (palette, on_white(np.broadcast_to([200, 30, 60], COLOUR.shape)), 0),
    "one-bit.tif": (lambda: encoded(Image.fromarray(GREY > 99), "TIFF", compression="group4"), (GREY3 > 99) * 255, 0),
    "animated.gif": (lambda: frames("GIF"), COLOUR, 12),
    "animated.webp": (lambda: frames("WEBP", lossless=True), COLOUR, 0),
    "animated.png": (lambda: frames("PNG"), COLOUR, 0),
    "pages.tif": (lambda: frames("TIFF"), COLOUR, 0),
    "one-pixel.bmp": (lambda: encoded(COLOUR[:1, :1], "BMP"), COLOUR[:1, :1], 0),
    "line.png": (lambda: encoded(COLOUR[:1], "PNG"), COLOUR[:1], 0),
    "sub/folders/in-folders.jpeg": (lambda: encoded(COLOUR, "JPEG", quality=95), COLOUR, 4),
}  # fmt: skip

REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty.jpg": (lambda: b"", "the file is empty"),
    "half.jpg": (lambda: turned("JPEG", quality=95)[:700], "damaged or truncated"),
    "drawing.png": (lambda: b"<?xml version='1.0'?><svg/>", "an XML or SVG file"),
    "drawing.jpg": (lambda: b"\n <svg xmlns=''/>", "an SVG drawing"),
    "document.jpg": (lambda: b"%PDF-1.7\n", "a PDF document"),
    "layers.jpg": (lambda: b"8BPS\0\x01" + bytes(50), "a Photoshop document"),
    "page.jpg": (lambda: b"<!DOCTYPE HTML><title>404", "a web page"),
    "pointer.jpg": (lambda: b"version https://git-lfs.github.com/spec/v1\noid", "a pointer of Git LFS"),
    "archive.jpg": (lambda: b"PK\x03\x04" + bytes(30), "a zip archive"),
    "film.jpg": (lambda: b"\0\0\0\x18ftypmp42" + bytes(30), r"a video \(MP4 or QuickTime\)"),
    "new.jpg": (lambda: b"\xff\x0a\x00\x10" + bytes(20), "a JPEG XL image"),
    "2000.jpg": (lambda: b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(20), "a JPEG 2000 image"),
    "raw.tif": (lambda: tiff(wide16().tobytes(), 16, 1, more=[(50706, 1, 4, 0x401)]), "only a preview"),
    "preview.tif": (lambda: tiff(wide16().tobytes(), 16, 1, more=[(254, 4, 1, 1)]), "only a preview"),
    "lab.tif": (lambda: encoded(Image.new("LAB", (4, 4)), "TIFF"), "its colours are in LAB"),
    "nan.tif": (lambda: encoded(np.full((4, 4), np.nan, np.float32), "TIFF"), "not finite numbers"),
    "bomb.png": (lambda: encoded(Image.new("1", (20_000, 10_000)), "PNG"), "200,000,000 pixels, more than"),
    "noise.jpg": (lambda: bytes(range(200)), "not an image of a known kind"),
}  # fmt: skip


def only_item(root: Path, name: str, data: bytes) -> Any:
    file = root / "class" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(data)
    images = find_images(root)["train"]
    assert images.skipped == []
    assert [item.id for item in images.items] == [f"class/{name}"]
    return images.items[0]


def test_there_are_more_than_thirty_kinds() -> None:
    assert len(READ) - (len(TURNS) - 1) + len(REFUSED) > 30


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")  # Pillow says so of broken-exif.jpg
@pytest.mark.parametrize("name", READ)
def test_read_right_from_a_folder(tmp_path: Path, name: str) -> None:
    make, expected, tolerance = READ[name]
    image = only_item(tmp_path, name, make()).load()
    assert image.mode == "RGB"
    found = np.asarray(image).astype(float)
    assert found.shape == expected.shape
    assert np.abs(found - expected).mean() <= tolerance


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(tmp_path: Path, name: str) -> None:
    make, reason = REFUSED[name]
    item = only_item(tmp_path, name, make())
    with pytest.raises(UnreadableImageError, match=reason) as caught:
        item.load()
    assert str(caught.value).startswith(f"class/{name}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_avif_is_read_or_the_package_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = only_item(tmp_path, "photo.avif", encoded(COLOUR, "AVIF", quality=95))
    assert np.abs(np.asarray(item.load()).astype(float) - COLOUR).mean() < 4
    monkeypatch.setattr(decode, "readable_formats", lambda: ("JPEG", "PNG"))
    monkeypatch.setattr("actstore.images.decode.readable_formats", lambda: ("JPEG", "PNG"))
    with pytest.raises(UnreadableImageError, match=r"an AVIF photo, which needs Pillow 11\.3 or newer"):
        item.load()


@pytest.fixture
def fresh_formats() -> Any:
    decode.readable_formats.cache_clear()
    yield
    decode.readable_formats.cache_clear()


def test_heic_is_read_where_its_plugin_is(tmp_path: Path, fresh_formats: Any) -> None:
    pytest.importorskip("pillow_heif").register_heif_opener()
    item = only_item(tmp_path, "IMG_0001.HEIC", encoded(COLOUR, "HEIF", quality=95))
    assert np.abs(np.asarray(item.load()).astype(float) - COLOUR).mean() < 4
    data = item.path.read_bytes()
    item.path.write_bytes(data[: len(data) // 2])
    with pytest.raises(UnreadableImageError, match="damaged or truncated"):
        item.load()


def test_heic_names_its_plugin_where_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_formats: Any
) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    item = only_item(tmp_path, "IMG_0001.HEIC", b"\0\0\0\x1cftypheic\0\0\0\0mif1heicmiaf" + bytes(100))
    with pytest.raises(UnreadableImageError, match=r"a HEIC photo, which needs pillow-heif.*actstore\[heif\]"):
        item.load()
