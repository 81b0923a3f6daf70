"""Folders of photos as `ppa adapt` and `ppa predict` list them, and what they say of the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actstore.errors import InvalidInputError
from cli.ppa.support import SAID, list_queries, list_support


def write(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())  # every file another content
    return root


def test_support_is_found_in_folders_in_folders_and_the_rest_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "a/1.jpg", "a/deep/er/2.HEIC", "a/notes.txt", "b/3.gif", "b/4.tif", "loose.webp", ".DS_Store")
    found = list_support(tmp_path)
    assert {name: [item.id for item in items] for name, items in found.items()} == {
        "a": ["1.jpg", "deep/er/2.HEIC"], "b": ["3.gif", "4.tif"],
    }  # fmt: skip
    assert all(item.label == name and item.path.is_file() for name, items in found.items() for item in items)
    assert capsys.readouterr().err.splitlines() == [
        f"not used: {tmp_path / 'loose.webp'}: not in the folder of a category",
        f"not used: {tmp_path / 'a' / 'notes.txt'}: not an image by its ending '.txt'",
    ]


def test_a_folder_whose_name_is_not_utf8_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "a/1.jpg", "caf/2.jpg")
    (tmp_path / "caf").rename(tmp_path / os.fsdecode(b"caf\xe9"))
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).touch()
    assert list(list_support(tmp_path)) == ["a"]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all("caf\\udce9" in line for line in said)


def test_no_folder_is_called_as_what_fits_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="'Unknown' is what is said where no category fits"):
        list_support(write(tmp_path, "a/1.jpg", "Unknown/2.jpg"))


def test_queries_are_files_as_they_are_and_all_images_of_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        tmp_path, "x/1.tiff", "x/y/2.avif", "photo.without_ending", *(f"x/{number}.txt" for number in range(SAID + 3))
    )
    os.mkfifo(tmp_path / "x" / "pipe.jpg")  # would never end to be read
    found = list_queries([tmp_path / "photo.without_ending", tmp_path / "x"])
    assert [item.id for item in found] == ["photo.without_ending", "1.tiff", "y/2.avif"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == SAID + 1
    assert lines[-1] == f"not used: 4 more in {tmp_path / 'x'}"
    with pytest.raises(InvalidInputError, match=r"holds no image \(\.jpg"):
        list_queries([write(tmp_path / "none", "a.txt")])
