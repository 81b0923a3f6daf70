"""Images inside of tar archives, class folders and WebDataset."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from actstore.errors import InvalidInputError, UnreadableImageError
from actstore.images.image_set import read_bytes
from actstore.images.opening import find_images
from tests.actstore.images.image_files import listed, only, picture, write_tar

# ---- tars


def test_a_tar_of_class_folders_is_read_in_place(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "x.tar", ["./b/1.jpg", "./a/2.jpg", "./a/._2.jpg", "./a/notes.txt", "./loose.png"])
    images = only(tar)
    assert listed(images) == [("a/2.jpg", "a"), ("b/1.jpg", "b")]
    assert [read_bytes(item) for item in images.items] == [picture("./a/2.jpg"), picture("./b/1.jpg")]
    assert {name for name, _ in images.skipped} == {"a/notes.txt", "loose.png"}
    assert images.items[0].load().mode == "RGB"


@pytest.mark.parametrize("wrapper", ["", "dataset/"])
def test_a_tar_with_splits(tmp_path: Path, wrapper: str) -> None:
    tar = write_tar(tmp_path / "x.tar", ["train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg"], wrapper)
    found = find_images(tar)
    assert {split: listed(images) for split, images in found.items()} == {
        "train": [("a/1.jpg", "a"), ("b/2.jpg", "b")],
        "val": [("a/3.jpg", "a")],
    }


def test_one_folder_around_the_classes_of_a_tar_is_left_out(tmp_path: Path) -> None:
    assert only(write_tar(tmp_path / "x.tar", ["a/1.jpg", "b/2.jpg"], "dataset/")).classes == ["a", "b"]


def test_tars_per_split(tmp_path: Path) -> None:
    write_tar(tmp_path / "train.tar", ["a/1.jpg"])
    write_tar(tmp_path / "val.tar", ["a/2.jpg"])
    assert {split: listed(images) for split, images in find_images(tmp_path).items()} == {
        "train": [("a/1.jpg", "a")],
        "val": [("a/2.jpg", "a")],
    }


def test_webdataset_labels_lie_beside_the_images(tmp_path: Path) -> None:
    members = {
        "000.jpg": picture("0"), "000.cls": b"7\n", "001.png": picture("1"), "001.json": b'{"label": "fox"}',
        "002.jpg": picture("2"), "003.jpg": picture("3"), "003.json": b'{"width": 4}',
    }  # fmt: skip
    images = only(write_tar(tmp_path / "x.tar", members))
    assert listed(images) == [("000.jpg", "7"), ("001.png", "fox"), ("003.jpg", None)]
    assert images.classes == ["7", "fox"]
    assert images.skipped == [("002.jpg", "no 002.cls or .json beside it")]


def test_webdataset_shards_may_share_keys(tmp_path: Path) -> None:
    for shard in ("s-000", "s-001"):
        write_tar(tmp_path / f"{shard}.tar", {"0.jpg": picture(shard), "0.cls": b"fox"})
    images = only(tmp_path)
    assert listed(images) == [("s-000/0.jpg", "fox"), ("s-001/0.jpg", "fox")]
    assert [read_bytes(item) for item in images.items] == [picture("s-000"), picture("s-001")]


def test_odd_members_of_a_tar(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", ["a/1.jpg", "../out/2.jpg", "a/line\nbreak.jpg"])
    with tarfile.open(path, "a") as tar:
        for name, kind in (("a/hard.jpg", tarfile.LNKTYPE), ("a/soft.jpg", tarfile.SYMTYPE)):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, "a/1.jpg"
            tar.addfile(link)
        folder = tarfile.TarInfo("empty")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    images = only(path)
    assert [item.id for item in images.items] == ["a/1.jpg", "a/hard.jpg"]
    assert read_bytes(images.items[1]) == picture("a/1.jpg")
    assert {name for name, _ in images.skipped} == {"../out/2.jpg", "a/line\\nbreak.jpg", "a/soft.jpg", "empty"}


def test_a_member_twice_is_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", ["a/1.jpg"])
    with tarfile.open(path, "a") as tar:
        tar.addfile(tarfile.TarInfo("a/1.jpg"))
    with pytest.raises(InvalidInputError, match=r"image id 'a/1\.jpg' appears twice; rename or remove"):
        find_images(path)


def test_damaged_and_compressed_tars(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "x.tar", [f"a/{number}.jpg" for number in range(30)]).read_bytes()
    for name, data, reason in (
        ("cut.tar", whole[:20_000], "damaged or truncated"),
        ("cut_in_data.tar", whole[:600], "damaged or truncated"),
        ("junk.tar", b"junk" * 1000, "damaged or truncated"),
        ("empty.tar", b"", "damaged or truncated"),
        ("x.tar.gz", b"\x1f\x8b" + whole, "compressed with gzip.*unpack it first"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InvalidInputError, match=reason):
            find_images(tmp_path / name)


def test_an_archive_that_shrank_is_noticed(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", ["a/1.jpg"])
    item = only(path).items[0]
    path.write_bytes(path.read_bytes()[:520])
    with pytest.raises(UnreadableImageError, match="ends inside of it, 8 of"):
        read_bytes(item)
