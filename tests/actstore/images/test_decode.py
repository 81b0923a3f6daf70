"""Every kind of pixel and every kind of damage: RGB, or one clear line."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from actstore.errors import InvalidInputError, UnreadableImageError
from actstore.images.decode import decode


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def gradient(width: int = 40, height: int = 24) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1).astype(np.uint8))


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "TIFF", "PPM"])
def test_lossless_kinds_come_back_whatever_their_name(kind: str) -> None:
    image = gradient().quantize(16).convert("RGB")
    np.testing.assert_array_equal(pixels(decode(encoded(image, kind), "x.jpg")), pixels(image))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_lossy_kinds_come_back_nearly(kind: str) -> None:
    result = pixels(decode(encoded(gradient(), kind, quality=95), "x.png"))
    assert np.abs(result - pixels(gradient())).mean() < 4


def test_exif_rotation_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise by 90 degrees to view
    image = decode(encoded(gradient(), "JPEG", quality=95, exif=exif), "x.jpg")
    assert image.size == (24, 40)
    assert np.abs(pixels(image) - pixels(gradient().rotate(-90, expand=True))).mean() < 4


def test_greyscale_and_one_bit() -> None:
    grey = gradient().convert("L")
    np.testing.assert_array_equal(pixels(decode(encoded(grey), "x"))[..., 1], np.asarray(grey))
    bits = grey.convert("1")
    np.testing.assert_array_equal(pixels(decode(encoded(bits), "x"))[..., 2], np.asarray(bits) * 255)


def test_16_bits_are_scaled_not_clipped() -> None:
    values = np.array([[0, 256, 32768, 65535]], np.uint16)
    np.testing.assert_array_equal(pixels(decode(encoded(Image.fromarray(values)), "x.png"))[0, :, 0], [0, 1, 128, 255])


def test_floats_are_stretched_and_nan_is_refused() -> None:
    values = np.array([[-1.0, 0.0, 1.0]], np.float32)
    np.testing.assert_array_equal(pixels(decode(encoded(Image.fromarray(values), "TIFF"), "x"))[0, :, 0], [0, 128, 255])
    values[0, 1] = np.nan
    with pytest.raises(UnreadableImageError, match="finite"):
        decode(encoded(Image.fromarray(values), "TIFF"), "x")


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_put_on_white(mode: str) -> None:
    image = Image.new(mode, (3, 1))
    for x, alpha in enumerate((0, 128, 255)):
        image.putpixel((x, 0), (*((0,) * (len(mode) - 1)), alpha))
    np.testing.assert_allclose(pixels(decode(encoded(image), "x"))[0, :, 0], [255, 127, 0], atol=1)


def test_palette_and_palette_with_transparency() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    np.testing.assert_array_equal(pixels(decode(encoded(image), "x"))[0], [[255, 0, 0], [0, 0, 255]])
    for transparency in (0, bytes([0, 255])):
        data = encoded(image, transparency=transparency)
        np.testing.assert_array_equal(pixels(decode(data, "x"))[0], [[255, 255, 255], [0, 0, 255]])


def test_colour_key_transparency() -> None:
    image = Image.new("RGB", (2, 1), (9, 8, 7))
    image.putpixel((1, 0), (1, 2, 3))
    data = encoded(image, transparency=(9, 8, 7))
    np.testing.assert_array_equal(pixels(decode(data, "x"))[0], [[255, 255, 255], [1, 2, 3]])


@pytest.mark.parametrize("at_least", [None, 8])
def test_cmyk_jpeg_is_not_inverted(at_least: int | None) -> None:
    image = Image.new("RGB", (64, 64), (200, 30, 30)).convert("CMYK")
    data = encoded(image, "JPEG", quality=95)  # Pillow writes Adobe's marker and inverted values, as Photoshop does
    assert b"Adobe" in data
    np.testing.assert_allclose(pixels(decode(data, "x", at_least)).mean((0, 1)), [200, 30, 30], atol=6)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animation_gives_its_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    red, _, blue = pixels(decode(data, "x")).mean((0, 1))
    assert red > 240
    assert blue < 15


@pytest.mark.parametrize(
    ("size", "at_least", "expected"),
    [((640, 480), 60, (80, 60)), ((640, 480), 61, (160, 120)), ((640, 480), 241, (640, 480)), ((90, 50), 64, (90, 50)),
     ((641, 481), 240, (321, 241))],
)  # fmt: skip
def test_draft_shrinks_jpegs_but_never_too_far(size: tuple[int, int], at_least: int, expected: tuple[int, int]) -> None:
    data = encoded(Image.new("RGB", size, "green"), "JPEG")
    assert decode(data, "x", at_least).size == expected
    assert decode(data, "x").size == size


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_draft_keeps_the_shorter_side(width: int, height: int, at_least: int) -> None:
    result = decode(encoded(Image.new("RGB", (width, height)), "JPEG"), "x", at_least)
    assert min(result.size) >= min(at_least, width, height)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95])
def test_truncation_is_always_noticed(kind: str, share: float, random: np.random.Generator) -> None:
    noise = Image.fromarray(random.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    data = encoded(noise, kind)
    with pytest.raises(UnreadableImageError, match=r"^a/b\.jpg: ") as caught:
        decode(data[: int(len(data) * share)], "a/b.jpg")
    assert "\n" not in str(caught.value)


def test_truncation_is_noticed_though_another_library_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = encoded(gradient(200, 200), "JPEG", progressive=True)
    with pytest.raises(UnreadableImageError, match="truncated"):
        decode(data[: len(data) // 2], "x")


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "the file is empty"), (b"hello world", "not an image"), (b"\x89PNG\r\n\x1a\n", "x.jpg: "),
     (b"<svg></svg>", "not an image"), (b"\xff\xd8\xff\xe0", "x.jpg: "), (bytes(1000), "not an image")],
)  # fmt: skip
def test_what_is_no_image(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableImageError, match=reason) as caught:
        decode(data, "x.jpg")
    assert isinstance(caught.value, InvalidInputError)


@pytest.mark.parametrize(("side", "pixel_count"), [(110, "12,100"), (150, "22,500")])
def test_decompression_bombs_are_refused_with_their_size(
    side: int, pixel_count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encoded(Image.new("1", (side, side)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)  # Pillow warns above it, and fails above its double
    with pytest.raises(UnreadableImageError, match=f"{pixel_count} pixels, more than 10,000 are refused"):
        decode(data, "x.png")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bombs_are_refused_where_warnings_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    with pytest.raises(UnreadableImageError, match="12,100 pixels"):
        decode(encoded(Image.new("1", (110, 110))), "x.png")


@given(st.binary(max_size=200), st.sampled_from(["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"]), st.data())
@settings(max_examples=150, deadline=None)
@pytest.mark.filterwarnings("ignore")
def test_damage_gives_an_image_or_one_kind_of_error(junk: bytes, kind: str, data: st.DataObject) -> None:
    whole = encoded(gradient(), kind)
    start = data.draw(st.integers(0, len(whole)))
    try:
        assert decode(whole[:start] + junk + whole[start + len(junk) :], "x").mode == "RGB"
    except UnreadableImageError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_errors_survive_a_worker_process() -> None:
    error = UnreadableImageError("x: damaged")
    assert str(pickle.loads(pickle.dumps(error))) == "x: damaged"
