"""The embedded data set: deterministic, distinct, the same from files and from memory."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from actstore.errors import InvalidInputError, StorageError
from actstore.images.glyphs import (
    FACES,
    class_name,
    face_file,
    glyph_categories,
    glyph_image,
    glyph_sets,
    ink,
    write_glyphs,
)
from actstore.images.opening import find_images, open_images


def test_twelve_faces_ship_with_matplotlib() -> None:
    assert len(set(FACES)) == 12
    assert all(face_file(face).exists() for face in FACES)


def test_two_thousand_distinct_categories_in_all_faces() -> None:
    characters = glyph_categories()
    assert len(characters) == len(set(characters)) >= 2000
    assert glyph_categories(100) == characters[:100]
    assert all(ink(character, face, 24) is not None for character in characters[::20] for face in FACES)
    assert len(set("AΑА") & set(characters)) == 1  # Latin, Greek, Cyrillic
    assert len(set("oOоОοΟ") & set(characters[:1000])) <= 1


def test_names_sort_by_code_point() -> None:
    characters = glyph_categories()
    names = sorted(map(class_name, characters))
    assert names == [class_name(character) for character in sorted(characters)]
    assert class_name("A") == "U+0041"


@given(st.integers(0, 1999), st.integers(0, 10**9), st.integers(0, 2**40), st.sampled_from([8, 28, 32, 64]))
@settings(max_examples=60, deadline=None)
def test_an_image_is_a_function_of_its_numbers(category: int, sample: int, seed: int, size: int) -> None:
    image = glyph_image(category, sample, seed, size)
    assert image.shape == (size, size)
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, glyph_image(category, sample, seed, size))
    assert np.ptp(image) > 60 or size < 28  # ink on paper; in eight pixels a thin stroke is as pale as the noise
    assert not np.array_equal(image, glyph_image(category, sample + 1, seed, size))
    assert not np.array_equal(image, glyph_image(category, sample, seed + 1, size))


def test_images_are_the_same_in_another_process_and_order() -> None:
    keys = [(category, sample) for category in (5, 900, 17) for sample in (0, 3)]
    code = (
        "from zlib import crc32; from actstore.images.glyphs import glyph_image\n"
        f"print([crc32(glyph_image(*key, seed=4).tobytes()) for key in {keys[::-1]}])"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(there) == [zlib.crc32(glyph_image(*key, seed=4).tobytes()) for key in keys[::-1]]


def test_categories_can_be_told_apart() -> None:
    """One nearest of 8 drawings of each of 100 characters, pixel by pixel: a floor far above chance (1%)."""
    count, shots = 100, 8
    train = np.stack([_unit(category, sample) for category in range(count) for sample in range(shots)])
    test = np.stack([_unit(category, 1000 + sample) for category in range(count) for sample in range(3)])
    nearest = (test @ train.T).argmax(axis=1) // shots
    assert (nearest == np.repeat(np.arange(count), 3)).mean() > 0.5


def _unit(category: int, sample: int) -> np.ndarray:
    image = 255.0 - glyph_image(category, sample, seed=0)
    image = np.clip(image / image.max() - 0.4, 0, None)
    y, x = np.mgrid[:32, :32]
    shift = [round(15.5 - (image * axis).sum() / image.sum()) for axis in (y, x)]
    centred = np.roll(image, shift, (0, 1)).reshape(16, 2, 16, 2).mean((1, 3)).ravel()
    unit: np.ndarray = centred / np.linalg.norm(centred)
    return unit


def test_the_set_and_its_files_are_the_same(tmp_path: Path) -> None:
    made = glyph_sets(classes=5, per_class=3, val_per_class=2, seed=1)
    told: list[int] = []
    assert write_glyphs(tmp_path, 5, 3, 2, seed=1, progress=told.append) == 25
    assert sum(told) == 25
    found = find_images(tmp_path)
    assert list(found) == list(made) == ["train", "val"]
    for split, images in made.items():
        assert images.classes == found[split].classes == sorted(images.classes)
        assert [(i.id, i.label) for i in images.items] == [(i.id, i.label) for i in found[split].items]
        for drawn, stored in zip(images.items, found[split].items, strict=True):
            np.testing.assert_array_equal(np.asarray(drawn.load()), np.asarray(stored.load()))
    assert pickle.loads(pickle.dumps(made["train"].items[0])) == made["train"].items[0]
    assert made["train"].items[1].id == f"{made['train'].classes[0]}/0001.png"


def test_validation_does_not_depend_on_how_many_are_for_training() -> None:
    few, many = (glyph_sets(3, per_class, 2)["val"] for per_class in (1, 9))
    assert few.items == many.items
    assert "val" not in glyph_sets(3, 1, 0)


def test_writing_resumes(tmp_path: Path) -> None:
    write_glyphs(tmp_path, 2, 2, 0)
    kept, lost = sorted(tmp_path.rglob("*.png"))[:2]
    before, stamp = lost.read_bytes(), kept.stat().st_mtime_ns
    lost.unlink()
    assert write_glyphs(tmp_path, 2, 2, 0) == 1
    assert lost.read_bytes() == before
    assert kept.stat().st_mtime_ns == stamp
    assert not list(tmp_path.rglob("*.part"))


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="the disk is full"):
        write_glyphs(tmp_path, 1, 1, 0)
    assert not [name for _, _, names in os.walk(tmp_path) for name in names]


@pytest.mark.parametrize(
    "wrong",
    [{"classes": 0}, {"classes": 10**6}, {"per_class": 0}, {"val_per_class": -1}, {"seed": -1}, {"size": 4},
     {"size": 5000}, {"per_class": 2_000_000}, {"distortion": 5.0}],
)  # fmt: skip
def test_wrong_numbers_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError, match="expected"):
        glyph_sets(**wrong)


def test_command(tmp_path: Path) -> None:
    from cli.actstore.generated import glyphs

    options = ["--classes", "3", "--per-class", "2", "--val-per-class", "1", "--size", "28"]
    result = CliRunner().invoke(glyphs, [str(tmp_path / "out"), *options, "--json"])
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert facts["train"] == 6
    assert facts["written"] == 9
    again = CliRunner().invoke(glyphs, [str(tmp_path / "out"), *options])
    assert "6 train and 3 val images of 3 classes, 28 x 28, 0 written" in again.stdout
    assert CliRunner().invoke(glyphs, [str(tmp_path / "out"), "--classes", "0"]).exit_code == 2


def test_distortion_moves_and_blurs_as_far_as_it_says() -> None:
    usual, none, far = (
        np.stack([glyph_image(3, sample, 0, distortion=distortion).astype(float) for sample in range(40)])
        for distortion in (1.0, 0.0, 3.0)
    )
    np.testing.assert_array_equal(usual[0], glyph_image(3, 0, 0))
    assert 0 < np.abs(usual - none).mean() < np.abs(far - none).mean()
    item = open_images("glyphs:3x2x1@3")["train"].items[0]
    expected = glyph_image(item.category, 0, 0, distortion=3.0)
    np.testing.assert_array_equal(np.asarray(item.load().convert("L")), expected)


@pytest.mark.parametrize("text", ["glyphs:3x2x1@9", "glyphs:3x2x1@", "glyphs:3x2x1@-1"])
def test_a_wrong_distortion_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="glyph"):
        open_images(text)
