"""Tiny-ImageNet as it is published."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from actstore.errors import InvalidInputError
from actstore.images.image_set import read_bytes
from actstore.images.opening import find_images
from tests.actstore.images.image_files import GOLDFISH, TENCH, listed, picture, write

# ---- Tiny-ImageNet


def tiny_imagenet(root: Path) -> Path:
    write(root, f"train/{TENCH}/images/{TENCH}_0.JPEG", f"train/{GOLDFISH}/images/{GOLDFISH}_0.JPEG",
          *(f"val/images/val_{number}.JPEG" for number in range(3)), "test/images/test_0.JPEG")  # fmt: skip
    (root / f"train/{TENCH}/{TENCH}_boxes.txt").write_text(f"{TENCH}_0.JPEG\t0\t10\t63\t58\n")
    (root / "val/val_annotations.txt").write_bytes(
        f"\ufeffval_0.JPEG\t{GOLDFISH}\t0\t32\t44\t62\r\nval_1.JPEG\t{TENCH}\t52\t55\t57\t59\r\n\r\n".encode()
    )
    (root / "wnids.txt").write_text(f"{TENCH}\n{GOLDFISH}\n")
    return root


@pytest.mark.parametrize("how", ["folder", "tar", "split tars"])
def test_tiny_imagenet_as_it_is_published(tmp_path: Path, how: str) -> None:
    root = tiny_imagenet(tmp_path / "tiny")
    if how == "tar":
        with tarfile.open(tmp_path / "tiny.tar", "w") as tar:
            tar.add(root, "tiny-imagenet-200")
        root = tmp_path / "tiny.tar"
    elif how == "split tars":
        for split in ("train", "val", "test"):
            with tarfile.open(tmp_path / f"{split}.tar", "w") as tar:
                for entry in sorted((root / split).iterdir()):
                    tar.add(entry, entry.name)
        root = tmp_path
        (tmp_path / "tiny").rename(tmp_path.parent / f"{tmp_path.name}-tiny")
    found = find_images(root)
    assert list(found) == ["train", "val", "test"]
    assert [one.classes for one in found.values()] == [[TENCH, GOLDFISH], [TENCH, GOLDFISH], []]
    assert listed(found["val"]) == [("images/val_0.JPEG", GOLDFISH), ("images/val_1.JPEG", TENCH)]
    assert found["val"].skipped == [("images/val_2.JPEG", "val_annotations.txt has no label for it")]
    assert listed(found["test"]) == [("images/test_0.JPEG", None)]
    assert read_bytes(found["val"].items[0]) == picture("val/images/val_0.JPEG")


def test_tiny_imagenet_without_or_with_wrong_annotations(tmp_path: Path) -> None:
    root = tiny_imagenet(tmp_path)
    annotations = root / "val/val_annotations.txt"
    for text, message in (
        ("val_0.JPEG n01\n", "line 1 of .*val_annotations.txt is 'val_0.JPEG n01'; expected a file name, a tab"),
        ("other.JPEG\tn01\n", "labels none of the 3 images, such as images/val_0.JPEG"),
    ):
        annotations.write_text(text)
        with pytest.raises(InvalidInputError, match=message):
            find_images(root)
    annotations.unlink()
    with pytest.raises(InvalidInputError, match="which is no class of train: expected val_annotations"):
        find_images(root)
