"""Class folders, flat folders, links and names: which images are found, with which labels and ids."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actstore.errors import InvalidInputError, StorageError, UnreadableImageError
from actstore.images.image_set import classes_train_lacks, read_bytes
from actstore.images.opening import find_images
from actstore.layout.columns import encode_ids
from tests.actstore.images.image_files import listed, only, picture, write

# ---- folders


def test_class_folders_without_splits_are_train(tmp_path: Path) -> None:
    images = only(write(tmp_path, "b/2.JPG", "b/1.jpeg", "a/x.png", "a/sub/y.WebP", "a/z.bmp"))
    assert listed(images) == [
        ("a/sub/y.WebP", "a"), ("a/x.png", "a"), ("a/z.bmp", "a"), ("b/1.jpeg", "b"), ("b/2.JPG", "b"),
    ]  # fmt: skip
    assert images.classes == ["a", "b"]
    assert images.skipped == []


def test_train_and_val_folders(tmp_path: Path) -> None:
    root = write(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "val/a/2.jpg", "README.md", "extra/a/3.jpg", "loose.tif")
    found = find_images(root)
    assert [name for name, _ in found["train"].skipped] == ["extra", "loose.tif"]
    assert {split: listed(images) for split, images in found.items()} == {
        "train": [("a/1.jpg", "a"), ("b/1.jpg", "b")],
        "val": [("a/2.jpg", "a")],
    }


def test_validation_is_another_name_of_val_but_not_beside_it(tmp_path: Path) -> None:
    assert list(find_images(write(tmp_path, "train/a/1.jpg", "validation/a/2.jpg"))) == ["train", "val"]
    with pytest.raises(InvalidInputError, match="'val' is there twice"):
        find_images(write(tmp_path, "val/a/2.jpg"))


def test_bytes_come_back_and_items_survive_a_worker_process(tmp_path: Path) -> None:
    for item in only(write(tmp_path, "a/1.jpg", "ü/很长.png")).items:
        copy = pickle.loads(pickle.dumps(item))
        assert copy == item
        assert read_bytes(copy) == picture(item.id)
        assert item.load().size == (4, 4)


def test_clutter_is_ignored_and_the_rest_is_named(tmp_path: Path) -> None:
    root = write(tmp_path, "a/1.jpg", "a/._1.jpg", "a/.hidden.png", "a/Thumbs.db", "a/.DS_Store", ".git/x.png",
                 "__MACOSX/a/1.jpg", "a/notes.txt", "loose.jpg", "README.md")  # fmt: skip
    (root / "empty").mkdir()
    images = only(root)
    assert listed(images) == [("a/1.jpg", "a")]
    assert dict(images.skipped) == {
        "a/notes.txt": "not an image by its ending '.txt'",
        "empty": "empty class folder",
        "loose.jpg": "not in a class folder",
        "README.md": "not an image by its ending '.md'",
    }


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    images = only(write(tmp_path, "2.jpg", "1.jpg"))
    assert listed(images) == [("1.jpg", None), ("2.jpg", None)]
    assert images.classes == []


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    root = write(tmp_path / "data", "a/1.jpg", "a/deep/2.jpg", "b/3.jpg")
    (root / "a" / "deep" / "up").symlink_to(root / "a")
    (root / "a" / "top").symlink_to(root)
    (root / "b" / "self.jpg").symlink_to("self.jpg")
    (root / "b" / "gone.jpg").symlink_to("nowhere.jpg")
    (root / "b" / "again").symlink_to(".")
    (root / "whole").symlink_to(root)
    (root / "c").symlink_to(root / "b")  # no circle: another name for a class
    images = only(root)
    assert [item.id for item in images.items] == ["a/1.jpg", "a/deep/2.jpg", "b/3.jpg", "c/3.jpg"]
    reasons = dict(images.skipped)
    assert set(reasons) == {
        "a/deep/up", "a/top", "b/self.jpg", "b/gone.jpg", "b/again", "whole", "c/self.jpg", "c/gone.jpg", "c/again",
    }  # fmt: skip
    assert all("symbolic link" in reason for reason in reasons.values())


def test_links_to_images_and_folders_elsewhere_are_followed(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", "x/1.jpg")
    root = write(tmp_path / "data", "a/0.jpg")
    (root / "b").symlink_to(tmp_path / "elsewhere" / "x")
    (root / "a" / "1.jpg").symlink_to(tmp_path / "elsewhere" / "x" / "1.jpg")
    assert listed(only(root)) == [("a/0.jpg", "a"), ("a/1.jpg", "a"), ("b/1.jpg", "b")]


def test_names_that_cannot_be_ids_are_skipped_with_a_reason(tmp_path: Path) -> None:
    root = write(tmp_path, "a/1.jpg", "a/line\nbreak.jpg", "bad\x07class/1.jpg", "a/\x7f.png")
    Path(os.fsdecode(os.fsencode(root) + b"/a/\xff.jpg")).write_bytes(b"x")
    images = only(root)
    assert listed(images) == [("a/1.jpg", "a")]
    assert {name for name, _ in images.skipped} == {
        "a/line\\nbreak.jpg",
        "bad\\x07class",
        "a/\\x7f.png",
        "a/\\udcff.jpg",
    }
    assert all(reason and name.isprintable() for name, reason in images.skipped)


def test_unicode_and_very_long_names(tmp_path: Path) -> None:
    long = "長" * 80 + ".jpg"  # 244 bytes, near the limit of file systems
    images = only(write(tmp_path, f"κλάση/{long}", 'emoji 🦊/it\'s, "quoted".jpg'))
    assert {item.id for item in images.items} == {f"κλάση/{long}", 'emoji 🦊/it\'s, "quoted".jpg'}
    assert all(read_bytes(item) == picture(item.id) for item in images.items)


def test_classes_in_two_unicode_spellings_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "caf\u00e9/1.jpg", "cafe\u0301/2.jpg")
    if len(list(tmp_path.iterdir())) == 1:
        pytest.skip("this file system unifies Unicode spellings")
    with pytest.raises(InvalidInputError, match="Unicode spellings"):
        find_images(tmp_path)


@pytest.mark.parametrize("names", [(), ("notes.txt",), ("a/notes.txt",)])
def test_no_images_says_what_is_expected(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError, match=r"no images in .*expected CLASS/\*\.jpg, train/CLASS"):
        find_images(write(tmp_path, *names))


def test_what_is_not_there_or_no_source(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no such file or folder"):
        find_images(tmp_path / "nowhere")
    write(tmp_path, "x.doc")
    with pytest.raises(InvalidInputError, match="is not a folder of images"):
        find_images(tmp_path / "x.doc")


def test_a_vanished_file_is_unreadable_and_a_failing_disk_is_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = only(write(tmp_path, "a/1.jpg")).items[0]
    item.path.unlink()
    with pytest.raises(UnreadableImageError, match=r"^a/1.jpg: cannot be read: No such file"):
        read_bytes(item)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        read_bytes(item)


NAMES = st.text(st.characters(exclude_characters="/\x00", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(st.lists(st.tuples(NAMES, NAMES), max_size=8))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_names_give_ids_that_a_store_accepts(
    tmp_path_factory: pytest.TempPathFactory, names: list[tuple[str, str]]
) -> None:
    root = tmp_path_factory.mktemp("any")
    write(root, "sure/1.jpg", *(f"c{first}/{second}.jpg" for first, second in names))
    try:
        images = only(root)
    except InvalidInputError as error:
        assert "Unicode spellings" in str(error)  # noqa: PT017
        return
    encode_ids([item.id for item in images.items])
    assert images.classes == sorted(images.classes)
    assert all(read_bytes(item) == picture(item.id) for item in images.items)
    assert [item.id for item in images.items] == sorted((i.id for i in images.items), key=lambda one: one.split("/"))


def test_a_class_called_images_is_a_class(tmp_path: Path) -> None:
    found = find_images(write(tmp_path, "train/images/1.jpg", "train/b/1.jpg", "val/images/2.jpg"))
    assert listed(found["val"]) == [("images/2.jpg", "images")]
    assert only(write(tmp_path / "one", "images/1.jpg")).classes == ["images"]


def test_classes_that_train_lacks() -> None:
    assert classes_train_lacks({"train": ["a", "b"], "val": ["b", "z", "c"], "test": ["a"]}) == {"val": ["c", "z"]}
    assert classes_train_lacks({"val": ["a"]}) == classes_train_lacks({"train": [], "val": ["a"]}) == {}
