"""Folders of photos as a classifier lists them, and what it says of the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actstore.errors import InvalidInputError
from predictor.classifier.photos import MAX_LISTED, list_folder, list_images


def write(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())  # every file another content
    return root


def test_support_is_found_in_folders_in_folders_and_the_rest_is_said(tmp_path: Path) -> None:
    write(tmp_path, "a/1.jpg", "a/deep/er/2.HEIC", "a/notes.txt", "b/3.gif", "b/4.tif", "loose.webp", ".DS_Store")
    found = list_folder(tmp_path)
    assert [(item.label, item.id) for item in found.items] == [
        ("a", "1.jpg"), ("a", "deep/er/2.HEIC"), ("b", "3.gif"), ("b", "4.tif"),
    ]  # fmt: skip
    assert all(item.path.is_file() for item in found.items)
    assert len(found.warnings) == 2
    assert str(tmp_path / "loose.webp") in found.warnings[0]
    assert str(tmp_path / "a" / "notes.txt") in found.warnings[1]


def test_a_folder_whose_name_is_not_utf8_is_said(tmp_path: Path) -> None:
    write(tmp_path, "a/1.jpg", "caf/2.jpg")
    (tmp_path / "caf").rename(tmp_path / os.fsdecode(b"caf\xe9"))
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).touch()
    found = list_folder(tmp_path)
    assert {item.label for item in found.items} == {"a"}
    assert len(found.warnings) == 2
    assert all("caf\\udce9" in line for line in found.warnings)


def test_no_folder_is_called_as_what_fits_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="Unknown"):
        list_folder(write(tmp_path, "a/1.jpg", "Unknown/2.jpg"))


def test_an_image_counts_once_in_a_category_and_is_kept_in_two(tmp_path: Path) -> None:
    write(tmp_path, "a/1.jpg", "b/3.jpg")
    for copy in ("a/2.jpg", "b/4.jpg"):
        (tmp_path / copy).write_bytes((tmp_path / "a/1.jpg").read_bytes())
    found = list_folder(tmp_path)
    assert [(item.label, item.id) for item in found.items] == [("a", "1.jpg"), ("b", "3.jpg"), ("b", "4.jpg")]
    assert str(tmp_path / "a/2.jpg") in found.warnings[0]
    assert "2 categories" in found.warnings[1]


def test_queries_are_files_as_they_are_and_all_images_of_folders(tmp_path: Path) -> None:
    many = [f"x/{number}.txt" for number in range(MAX_LISTED + 3)]
    write(tmp_path, "x/1.tiff", "x/y/2.avif", "photo.without_ending", *many)
    os.mkfifo(tmp_path / "x" / "pipe.jpg")  # would never end to be read
    found = list_images([str(tmp_path / "photo.without_ending"), tmp_path / "x"])
    assert [item.id for item in found.items] == ["photo.without_ending", "1.tiff", "y/2.avif"]
    assert len(found.warnings) == MAX_LISTED + 1
    assert str(tmp_path / "x") in found.warnings[-1]
    with pytest.raises(InvalidInputError, match="none"):
        list_images(write(tmp_path / "none", "a.txt"))
    with pytest.raises(InvalidInputError, match="missing"):
        list_images([tmp_path / "missing.jpg"])


def test_a_way_out_is_named_only_where_there_is_one(tmp_path: Path) -> None:
    write(tmp_path, "cat/1.jpg")
    (tmp_path / "dog").mkdir()
    with pytest.raises(InvalidInputError, match=r"'dog'.*--on-error"):
        list_folder(tmp_path, "fail")
    with pytest.raises(InvalidInputError, match="'dog'") as raised:
        list_folder(tmp_path)
    assert "--on-error" not in str(raised.value)
