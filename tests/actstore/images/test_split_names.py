"""Folders and tars of splits by their names, and classes that have such names."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from actstore.images.opening import find_images
from actstore.images.split_names import LEFT_OUT, layout_warnings
from tests.actstore.images.image_files import write


def pack(root: Path) -> Path:
    archive = root.parent / f"{root.name}.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(root, ".")
    return archive


@pytest.mark.parametrize(
    ("folders", "splits"),
    [
        (["Training", "Test"], ["train", "test"]),
        (["TRAIN", "Val"], ["train", "val"]),
        (["training", "validation", "testing"], ["train", "val", "test"]),
        (["train", "dev"], ["train", "val"]),
        (["seg_train", "seg_test"], ["train", "test"]),
        (["train_images", "val_images"], ["train", "val"]),
        (["images-train", "Images-Valid"], ["train", "val"]),
        (["train2017", "val2017"], ["train", "val"]),
        (["Validation"], ["val"]),
    ],
)
def test_names_of_splits(tmp_path: Path, folders: list[str], splits: list[str]) -> None:
    root = write(tmp_path / "root", *(f"{folder}/{name}/{folder}.jpg" for folder in folders for name in "ab"))
    (root / "notes").mkdir()
    for place in (root, pack(root)):
        found = find_images(place)
        assert list(found) == splits
        assert all(images.classes == ["a", "b"] for images in found.values())


@pytest.mark.parametrize(
    ("files", "splits", "left_out"),
    [
        (["train/a/1", "train/x", "val/a/1", "val/y", "extra/e"], ["train", "val"], ["extra"]),
        (["train/1", "test/2", "docs/3"], ["train", "test"], ["docs"]),
        (["train/a/1", "train_old/a/1", "val/a/1"], ["train", "val"], ["train_old"]),
        (["train/a/1", "train_masks/1", "val/a/1"], ["train", "val"], ["train_masks"]),
        (["train/a/1", "val/a/1", "dev/a/1"], ["train", "val"], ["dev"]),
        (["train/a/1", "test/a/1", "testing/a/1"], ["train", "test"], ["testing"]),
        (["dev/x/1", "bus/x/1"], ["train"], []),
    ],
)
def test_folders_that_only_resemble_splits(
    tmp_path: Path, files: list[str], splits: list[str], left_out: list[str]
) -> None:
    root = write(tmp_path / "root", *(f"{file}.jpg" for file in files))
    for place in (root, pack(root)):
        found = find_images(place)
        assert list(found) == splits
        assert [name for name, reason in found["train"].skipped if reason == LEFT_OUT] == left_out


@pytest.mark.parametrize(
    "classes",
    [
        ["bus", "car", "train"],
        ["Test", "dog", "training"],
        ["test tube", "train station"],
        ["cat", "dev", "dog"],
        ["test", "trial"],
    ],
)
def test_classes_that_are_called_like_splits(tmp_path: Path, classes: list[str]) -> None:
    root = write(tmp_path / "root", *(f"{name}/{name}{number}.jpg" for name in classes for number in (1, 2)))
    for place in (root, pack(root)):
        found = find_images(place)
        assert list(found) == ["train"]
        assert found["train"].classes == classes


def test_folders_beside_those_of_splits_are_named(tmp_path: Path) -> None:
    root = write(tmp_path / "root", "Training/a/1.jpg", "Test/a/2.jpg", "more/a/3.jpg", "notes/readme.txt")
    for place in (root, pack(root)):
        found = find_images(place)
        assert list(found) == ["train", "test"]
        assert ("more", LEFT_OUT) in found["train"].skipped
        (line,) = layout_warnings("train", (), found["train"].skipped)
        assert "more" in line
        assert "notes" not in line


def test_a_folder_of_classes_that_is_taken_as_a_class_is_named(tmp_path: Path) -> None:
    images = find_images(write(tmp_path, "dog/1.jpg", "cat/2.jpg", "test/dog/3.jpg", "test/cat/4.jpg"))["train"]
    assert images.classes == ["cat", "dog", "test"]
    (line,) = layout_warnings("train", ((item.id, item.label) for item in images.items), images.skipped)
    assert line.startswith("test ")


def test_classes_that_hold_further_folders_are_named(tmp_path: Path) -> None:
    root = write(tmp_path, "train/Fruit/Kiwi/1.jpg", "train/Fruit/Apple/Golden/2.jpg", "train/Nuts/images/3.jpg")
    images = find_images(root)["train"]
    (line,) = layout_warnings("train", ((item.id, item.label) for item in images.items), images.skipped)
    assert "Fruit/Apple/Golden" in line
    assert "Nuts" not in line
