"""Imports and appends that are repeated: a file is known again by its content."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore.errors import IncompleteError, InvalidInputError
from actstore.storage.place import parse_place
from actstore.tables.importing import ImportRequest, append_file, import_file
from tests.actstore.tables.array_examples import VALUES, save


def test_repeating_a_finished_import_changes_nothing(tmp_path: Path, labels: Path) -> None:
    request = ImportRequest(save(tmp_path / "x.npy"), labels=labels)
    content = import_file(request, tmp_path / "x.zarr")["train"].content
    assert import_file(request, tmp_path / "x.zarr")["train"].content == content
    np.save(tmp_path / "other.npy", VALUES[:10])
    with pytest.raises(InvalidInputError, match="finished split 'train' of another origin"):
        import_file(ImportRequest(tmp_path / "other.npy"), tmp_path / "x.zarr")
    import_file(ImportRequest(tmp_path / "other.npy", split="val"), tmp_path / "x.zarr")
    assert set(actstore.open(tmp_path / "x.zarr").splits) == {"train", "val"}


def test_a_resume_from_a_changed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actstore.tables.row_source.BLOCK_BYTES", 2048)  # 32 rows at a time
    np.save(tmp_path / "x.npy", VALUES[::-1])

    def interrupt(split: str, done: int, rows: int) -> None:
        if done > 250:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_file(ImportRequest(tmp_path / "x.npy"), tmp_path / "x.zarr", interrupt, chunk_rows=32)
    np.save(tmp_path / "x.npy", VALUES)
    with pytest.raises(IncompleteError, match="they differ in mtime_ns"):
        import_file(ImportRequest(tmp_path / "x.npy"), tmp_path / "x.zarr")
    store = import_file(ImportRequest(tmp_path / "x.npy"), tmp_path / "x.zarr", restart=True)
    np.testing.assert_array_equal(store["train"][:], VALUES)


def test_append_adds_rows_and_classes_once(tmp_path: Path, labels: Path) -> None:
    import_file(ImportRequest(save(tmp_path / "x.npy"), labels=labels), tmp_path / "x.zarr")
    np.save(tmp_path / "more.npy", VALUES[:4])
    (tmp_path / "more.txt").write_text("dog\n3\ncat\ndog\n")
    request = ImportRequest(tmp_path / "more.npy", labels=tmp_path / "more.txt")
    assert append_file(request, tmp_path / "x.zarr") == 4
    assert append_file(request, tmp_path / "x.zarr") == 0
    store = actstore.open(tmp_path / "x.zarr")
    assert store.classes == ("0", "1", "2", "3", "4", "cat", "dog")
    train = store["train"]
    assert [store.classes[label] for label in train.labels[300:]] == ["dog", "3", "cat", "dog"]


def test_a_failed_append_adds_no_classes(tmp_path: Path, labels: Path) -> None:
    import_file(ImportRequest(save(tmp_path / "x.npy"), labels=labels), tmp_path / "x.zarr")
    (tmp_path / "names.txt").write_text("owl\n" * 300)
    with pytest.raises(InvalidInputError, match="no split 'trian'"):
        append_file(
            ImportRequest(tmp_path / "x.npy", split="trian", labels=tmp_path / "names.txt"), tmp_path / "x.zarr"
        )
    assert "owl" not in actstore.open(tmp_path / "x.zarr").classes


def test_what_a_kill_after_the_commit_leaves_is_removed(tmp_path: Path) -> None:
    request = ImportRequest(save(tmp_path / "x.npy"))
    store = import_file(request, tmp_path / "x.zarr")
    leftover = store.path / "train/activations/pending"
    for name in ("source.json", "rows-0.npz"):  # removed before the kill, or not yet
        leftover.mkdir()
        (leftover / name).write_text("null")
        import_file(request, tmp_path / "x.zarr")
        assert not leftover.exists()


def test_a_file_is_known_again_by_its_content(tmp_path: Path) -> None:
    """A, B, A: touched, renamed or moved, a file that was added before adds nothing."""
    store, first, second = tmp_path / "x.zarr", save(tmp_path / "a.npy"), tmp_path / "b.npy"
    np.save(second, VALUES[::-1])  # as long as the first
    import_file(ImportRequest(first), store)
    assert append_file(ImportRequest(second), store) == len(VALUES)
    os.utime(first, (1, 1))
    assert append_file(ImportRequest(first), store) == 0
    moved = first.rename(tmp_path / "elsewhere.npy")
    assert append_file(ImportRequest(moved), store) == 0
    assert append_file(ImportRequest(second), store) == 0
    import_file(ImportRequest(moved), store)  # finished already, from this very content
    assert len(actstore.open(store)["train"]) == 2 * len(VALUES)
    assert append_file(ImportRequest(moved), store, again=True) == len(VALUES)
    np.save(second, VALUES * 2)
    assert append_file(ImportRequest(second), store) == len(VALUES)


def test_other_labels_or_another_array_are_another_source(tmp_path: Path, labels: Path) -> None:
    store, file = tmp_path / "x.zarr", tmp_path / "two.npz"
    np.savez(file, one=VALUES, two=VALUES)
    import_file(ImportRequest(file, array="one", split="train", labels=labels), store)
    assert append_file(ImportRequest(file, array="two", split="train", labels=labels), store) == len(VALUES)
    assert append_file(ImportRequest(file, array="one", split="train", labels=labels), store) == 0
    other = tmp_path / "other.npy"
    np.save(other, np.load(labels)[::-1] if labels.suffix == ".npy" else np.zeros(len(VALUES), int))
    assert append_file(ImportRequest(file, array="one", split="train", labels=other), store) == len(VALUES)


def test_sources_of_older_stores_are_compared_as_before(tmp_path: Path) -> None:
    from actstore.layout.metadata import change_attributes
    from actstore.spec import KEY

    store, file = tmp_path / "x.zarr", save(tmp_path / "a.npy")
    import_file(ImportRequest(file), store)

    def without_content(attributes: Any) -> Any:
        attributes = json.loads(json.dumps(attributes))
        (source,) = attributes[KEY]["sources"]
        assert source.pop("content").startswith("sha256:")
        return attributes

    change_attributes(parse_place(store) / "train", without_content)
    assert append_file(ImportRequest(file), store) == 0
    os.utime(file, (1, 1))
    assert append_file(ImportRequest(file), store) == len(VALUES)
    assert append_file(ImportRequest(file), store) == 0


def test_what_was_appended_does_not_hide_a_build(tmp_path: Path) -> None:
    from actstore.backbones.loading import load_backbone
    from actstore.extraction.build import BuildOptions, build
    from actstore.images.glyphs import write_glyphs
    from actstore.images.opening import open_images

    folder, store = tmp_path / "photos", tmp_path / "x.zarr"
    write_glyphs(folder, 2, 3, 0)
    backbone = load_backbone("small", random_weights=True)

    def build_from(images: Path) -> int:
        made = build(open_images(str(images)), str(images), store, backbone, BuildOptions("cpu", 4, 0))
        return len(made["train"])

    rows = build_from(folder)
    np.save(tmp_path / "more.npy", np.ones((2, backbone.layers["activations"])))
    (tmp_path / "ids.txt").write_text("m0\nm1\n")
    append_file(ImportRequest(tmp_path / "more.npy", split="train", ids=tmp_path / "ids.txt"), store)
    assert build_from(folder) == rows + 2
    assert build_from(folder.rename(tmp_path / "moved")) == rows + 2
    shutil.copytree(tmp_path / "moved", folder)
    with pytest.raises(InvalidInputError, match="of another build"):
        (folder / "train" / "new").mkdir(parents=True)
        (folder / "train" / "new" / "x.png").write_bytes(b"")
        build_from(folder)
