"""A build keeps width, height, bytes and date of its images as columns; they are mended from the images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import actstore
from actstore.backbones.loading import Backbone, load_backbone
from actstore.extraction.build import BuildOptions, build
from actstore.images.decode import decode_with_facts
from actstore.images.opening import open_images
from actstore.upkeep.repair import repair_faults
from actstore.upkeep.verify import verify_store


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone("small", random_weights=True)


def photo(
    path: Path, size: tuple[int, int], taken: str | None = None, changed: str | None = None, turned: int = 1
) -> Path:
    exif = Image.Exif()
    exif[0x0112] = turned
    if changed is not None:
        exif[0x0132] = changed
    if taken is not None:
        exif.get_ifd(0x8769)[0x9003] = taken
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (90, 80, 7)).save(path, exif=exif)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = tmp_path / "photos"
    photo(images / "a/1.jpg", (60, 40), "2021:05:06 07:08:09", "2024:01:01 00:00:00")
    photo(images / "a/2.jpg", (60, 40), None, "2022:01:02 03:04:05")
    photo(images / "b/3.jpg", (60, 40), "0000:00:00 00:00:00", turned=6)
    photo(images / "b/4.png", (30, 50))
    (images / "b/5.jpg").write_bytes(b"no image")
    return images


def make(folder: Path, backbone: Backbone, batch_size: int = 2, name: str = "x.zarr") -> actstore.ActivationStore:
    options = BuildOptions("cpu", batch_size, 0)
    return build(open_images(str(folder)), str(folder), folder.parent / name, backbone, options)  # type: ignore[arg-type]


def test_sizes_and_dates(folder: Path, backbone: Backbone) -> None:
    store = make(folder, backbone)
    train = store["train"]
    files = [folder / name for name in train.ids]
    assert [file.name for file in files] == ["1.jpg", "2.jpg", "3.jpg", "4.png"]
    np.testing.assert_array_equal(train.columns["width"], [60, 60, 40, 30])
    np.testing.assert_array_equal(train.columns["height"], [40, 40, 60, 50])  # 3.jpg lies on its side
    np.testing.assert_array_equal(train.columns["bytes"], [file.stat().st_size for file in files])
    expected = np.array(["2021-05-06T07:08:09", "2022-01-02T03:04:05", "NaT", "NaT"], "M8[us]")
    np.testing.assert_array_equal(train.columns["date"], expected)
    np.testing.assert_array_equal(train.query(where="date < 2022 and width >= 60"), [0])
    assert verify_store(store) == []


def test_damaged_columns_are_read_again_from_the_images(folder: Path, backbone: Backbone) -> None:
    store = make(folder, backbone)
    before = dict(store["train"].columns)
    (folder.parent / "x.zarr/train/date/c/0").unlink()
    outcomes = repair_faults(store, verify_store(store))
    assert [said for _, said in outcomes] == ["repaired from its source"]
    for name, values in before.items():
        np.testing.assert_array_equal(store["train"].columns[name], values)


def test_a_build_that_began_before_there_were_columns_goes_on(
    folder: Path, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actstore.extraction import build as module

    class StopError(Exception):
        pass

    def stop(split: str, done: int, total: int) -> None:
        raise StopError

    with monkeypatch.context() as patch, pytest.raises(StopError):
        patch.setattr(module, "columns_of", lambda facts: {})
        options = BuildOptions("cpu", 2, 0)
        target = folder.parent / "x.zarr"
        build(open_images(str(folder)), str(folder), target, backbone, options, stop)  # type: ignore[arg-type]
    train = make(folder, backbone)["train"]
    np.testing.assert_array_equal(train.columns["width"], [np.nan, np.nan, 40, 30])


@pytest.mark.parametrize("exif", [b"Exif\0\0", b"Exif\0\0garbage that is no TIFF"])
def test_broken_metadata_have_no_date(tmp_path: Path, exif: bytes) -> None:
    path = tmp_path / "x.jpg"
    Image.new("RGB", (20, 10)).save(path, exif=exif)
    data = path.read_bytes()
    facts = decode_with_facts(data, "x.jpg")[1]
    assert (facts.width, facts.height, facts.bytes, facts.date) == (20, 10, len(data), None)
