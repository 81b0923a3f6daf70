"""Stray files change nothing, wherever they lie: in a store, among images, in a tar, beside examples."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import actstore
from actstore.images.opening import find_images
from actstore.spec import is_stray
from cli.actstore import main
from predictor.classifier.photos import list_folder, list_images

FILES = (".DS_Store", "Thumbs.db", "desktop.ini", "._x", "x~", ".x.swp", "#x#")
FOLDERS = ("__MACOSX", ".ipynb_checkpoints", "@eaDir")


def litter(folder: Path) -> None:
    """Strays in a folder and in every folder below; those of macOS take the names of what they lie beside."""
    for place in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        names = [name for path in place.iterdir() for name in (f"._{path.name}", f"{path.name}~")]
        for one in (*FILES, *names):
            (place / one).write_bytes(b"\0\5\26\7 not what you think")
        for one in FOLDERS:
            (place / one).mkdir(exist_ok=True)
            (place / one / "zarr.json").write_text("{")
            (place / one / "1.jpg").write_bytes(b"no image")


def picture(path: Path) -> None:
    """A grey of its own for each name, as examples of the same bytes are taken once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    grey = sum(f"{path.parent.name}/{path.name}".encode()) % 256
    Image.new("RGB", (4, 4), (grey, grey, grey)).save(path)


@pytest.mark.parametrize("name", [*FILES, *FOLDERS, "THUMBS.DB", "~$letter.docx"])
def test_what_is_stray(name: str) -> None:
    assert is_stray(name)


@pytest.mark.parametrize("name", ["train", "a", "#", "~", "##", "c#", "n01440764", "U+007E", "_x", "thumbs"])
def test_what_is_not(name: str) -> None:
    assert not is_stray(name)


def run(*arguments: Any) -> Any:
    done = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_every_command_on_a_littered_store(make_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = make_store()
    litter(tmp_path / "x.zarr")
    (tmp_path / "._x.zarr").write_bytes(b"beside the store")
    (tmp_path / "x.zarr" / "notes.txt").write_text("a file that somebody put there")
    assert list(actstore.open("x.zarr").splits) == ["train"]
    assert [split["split"] for split in run("info")["splits"]] == ["train"]  # still the one store here
    assert not run("verify", "x.zarr").get("faults")
    assert not run("verify", "x.zarr", "--repair").get("faults")
    run("means", "x.zarr")
    run("means", "x.zarr")  # from what was kept
    assert len(run("query", "x.zarr", "--rows", "0:5")) > 0
    run("search", "x.zarr", "--row", "3")
    run("export", "x.zarr", "out.npz")
    np.save("more.npy", store.values[:3])
    np.save("more_labels.npy", store.labels[:3])
    (tmp_path / "more_ids.txt").write_text("a\nb\nc\n")
    added = run("append", "more.npy", "x.zarr", "--labels", "more_labels.npy", "--ids", "more_ids.txt")
    assert added["rows_added"] == 3
    np.testing.assert_array_equal(actstore.open("x.zarr")["train"][:1000], store.values)


def test_an_interrupted_build_is_resumed_in_a_littered_store(make_store: Any) -> None:
    store = make_store()
    writer = store.writer("val", source={"kind": "program", "name": "a"})
    writer.append(store.values[:200], store.labels[:200], store.ids[:200])
    writer.close()
    litter(store.path)
    with store.writer("val", source={"kind": "program", "name": "a"}) as writer:
        done = writer.position
        writer.append(store.values[done:300], store.labels[done:300], store.ids[done:300])
    np.testing.assert_array_equal(store["val"][:], store.values[:300])


def test_a_folder_with_nothing_but_strays_is_free(tmp_path: Path) -> None:
    (tmp_path / "x.zarr").mkdir()
    (tmp_path / "x.zarr" / ".DS_Store").write_bytes(b"x")
    actstore.create(tmp_path / "x.zarr", classes=["a"], dim=4)
    assert actstore.open(tmp_path / "x.zarr").classes == ("a",)


def test_images_in_littered_folders_and_tars(tmp_path: Path) -> None:
    for name in ("train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg"):
        picture(tmp_path / "images" / name)
    clean = find_images(tmp_path / "images")
    litter(tmp_path / "images")
    with tarfile.open(tmp_path / "images.tar", "w") as tar:
        tar.add(tmp_path / "images", "images")
    for root in ("images", "images.tar"):
        found = find_images(tmp_path / root)
        assert {split: [item.id for item in one.items] for split, one in found.items()} == {
            split: [item.id for item in one.items] for split, one in clean.items()
        }
        assert [one.classes for one in found.values()] == [["a", "b"], ["a"]]
        assert all(one.skipped == [] for one in found.values())


def test_class_tars_beside_strays(tmp_path: Path) -> None:
    data = io.BytesIO()
    Image.new("RGB", (4, 4)).save(data, "PNG")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("1.png", "._1.png", "__MACOSX/1.png"):
            info = tarfile.TarInfo(name)
            info.size = len(data.getvalue())
            tar.addfile(info, io.BytesIO(data.getvalue()))
    (tmp_path / "._a.tar").write_bytes(b"no tar")
    found = find_images(tmp_path)["train"]
    assert [(item.id, item.label) for item in found.items] == [("a/1.png", "a")]
    assert found.skipped == []


def test_examples_and_photos(tmp_path: Path) -> None:
    for name in ("okapi/1.jpg", "okapi/2.jpg", "quokka/1.jpg"):
        picture(tmp_path / name)
    litter(tmp_path)
    assert [(item.label, item.id) for item in list_folder(tmp_path).items] == [
        ("okapi", "1.jpg"), ("okapi", "2.jpg"), ("quokka", "1.jpg"),
    ]  # fmt: skip
    assert [item.id for item in list_images([tmp_path]).items] == ["okapi/1.jpg", "okapi/2.jpg", "quokka/1.jpg"]
