"""A csv or parquet that lists images."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from actstore.errors import InvalidInputError
from actstore.images.image_set import read_bytes
from actstore.images.opening import find_images
from tests.actstore.images.image_files import listed, only, picture, write

# ---- lists

ROWS = [("b/1.jpg", "fox", "train"), ("a/2.jpg", "owl", "val"), ("a/3.jpg", "", ""), ("x\ny.jpg", "owl", "train"),
        ("../4.jpg", "owl", "train"), ("5.doc", "owl", "train")]  # fmt: skip


def write_list(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    if path.suffix == ".parquet":
        columns = dict(zip(("path", "label", "split"), map(list, zip(*rows, strict=True)), strict=True))
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    else:
        path.write_text("path,label,split\n" + "".join(f'"{a}",{b},{c}\n' for a, b, c in rows), encoding="utf-8-sig")
    return path


@pytest.mark.parametrize("name", ["list.csv", "list.parquet"])
def test_lists(tmp_path: Path, name: str) -> None:
    write(tmp_path, "b/1.jpg", "a/2.jpg", "a/3.jpg")
    found = find_images(write_list(tmp_path / name, ROWS))
    assert listed(found["train"]) == [("b/1.jpg", "fox"), ("a/3.jpg", None)]
    assert listed(found["val"]) == [("a/2.jpg", "owl")]
    assert {skipped for skipped, _ in found["train"].skipped} == {"x\\ny.jpg", "../4.jpg", "5.doc"}
    assert read_bytes(found["val"].items[0]) == picture("a/2.jpg")


def test_a_list_of_two_columns_and_absolute_paths(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", "1.jpg")
    (tmp_path / "list.csv").write_text(f"path,label\n{tmp_path}/elsewhere/1.jpg,fox\n./elsewhere/1.jpg,fox\n")
    images = only(tmp_path / "list.csv")
    assert [item.id for item in images.items] == [f"{tmp_path}/elsewhere/1.jpg"[1:], "elsewhere/1.jpg"]
    assert {read_bytes(item) for item in images.items} == {picture("1.jpg")}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("file,label\n1.jpg,fox\n", "has columns file, label; expected a header path,label"),
        ("", "has columns none"),
        ("path,label\n1.jpg\n", "line 2 of .* does not have as many columns"),
        ("path,label\n1.jpg,fox,more\n", "line 2 of .* does not have as many columns"),
        ("path,label\n1.jpg,fox\n./1.jpg,owl\n", "image id '1.jpg' appears twice"),
        ("path,label\nnowhere.jpg,fox\n", "none of its first 1 images exist"),
        (f"path,label\n{'x' * 300}.jpg,fox\n", "none of its first 1 images exist"),
        ("path,label\n", "no images in"),
        ("path,label\n1.jpg,caf\u00e9\n2.jpg,cafe\u0301\n", "class .* Unicode spellings"),
    ],
)
def test_wrong_lists_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    write(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(InvalidInputError, match=reason):
        find_images(tmp_path / "list.csv")


@pytest.mark.parametrize("name", ["list.csv", "list.parquet"])
def test_files_that_are_no_lists(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe\x00junk" * 10)
    with pytest.raises(InvalidInputError, match="is not a"):
        find_images(tmp_path / name)
