"""Builds: rows equal a plain loop over the images, whatever the batch size, workers, kills or bad files."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import actstore
from actstore.backbones.loading import Backbone, load_backbone
from actstore.errors import ActstoreError, InvalidInputError
from actstore.extraction.build import BuildOptions, build
from actstore.images.opening import open_images
from tests.store_files import files

CLASSES = ("ant", "bee", "çat")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for split, count in (("train", 9), ("val", 2)):
        for name in CLASSES:
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 255, (40 + number, 50, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / split / name / f"{number}.png")
    return tmp_path / "images"


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone("small", random_weights=True, seed=1)


def plain_loop(folder: Path, backbone: Backbone) -> tuple[np.ndarray, list[str]]:
    paths = sorted(folder.rglob("*.png"))
    rows = []
    with torch.no_grad():
        for path in paths:
            with Image.open(path) as image:
                rows.append(backbone.module.features(backbone.transform(image.convert("RGB"))[None])[0].numpy())
    return np.stack(rows), [path.relative_to(folder).as_posix() for path in paths]


@pytest.mark.numeric
@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (4, 0), (100, 0), (8, 2)])
def test_rows_equal_a_plain_loop(folder: Path, backbone: Backbone, batch_size: int, workers: int) -> None:
    options = BuildOptions("cpu", batch_size, workers)
    store = build(open_images(str(folder)), str(folder), folder.parent / "x.zarr", backbone, options)
    expected, ids = plain_loop(folder / "train", backbone)
    train = store["train"]
    np.testing.assert_allclose(train[:], expected, rtol=2e-3, atol=1e-4)
    assert list(train.ids) == ids
    assert store.classes == CLASSES
    assert [store.classes[label] for label in train.labels] == [name.split("/")[0] for name in ids]
    assert len(store["val"]) == 6
    facts = store.spec.provenance
    assert facts["backbone"] == "small"
    assert facts["weights_sha256"] == backbone.weights_sha256
    assert facts["transform"] == backbone.transform.to_json()


def test_several_layers_in_one_pass(folder: Path) -> None:
    layers = [name for name, _ in load_backbone("small", random_weights=True).module.named_modules() if name][:2]
    two = load_backbone("small", layers=["activations", layers[0]], random_weights=True, seed=1)
    store = build(open_images(str(folder)), str(folder), folder.parent / "x.zarr", two, BuildOptions("cpu", 5, 0))
    assert store["train"].dim == two.layers["activations"]
    assert store[f"train.{layers[0]}"].dim == two.layers[layers[0]]
    assert list(store["train"].ids) == list(store[f"train.{layers[0]}"].ids)


def test_bad_images_are_listed_and_the_rest_is_built(folder: Path, backbone: Backbone) -> None:
    (folder / "train/ant/0.png").write_bytes(b"")
    good = (folder / "train/bee/3.png").read_bytes()
    (folder / "train/bee/3.png").write_bytes(good[: len(good) // 2])
    (folder / "train/çat/8.png").write_bytes(b"not an image at all")
    store = build(open_images(str(folder)), str(folder), folder.parent / "x.zarr", backbone, BuildOptions("cpu", 4, 0))
    train = store["train"]
    assert len(train) == 24
    skipped = dict(train.committed.sources[0]["skipped"])
    assert list(skipped) == ["ant/0.png", "bee/3.png", "çat/8.png"]
    assert not set(skipped) & set(train.ids)
    with pytest.raises(InvalidInputError, match=r"ant/0\.png.*--on-error skip"):
        fails = BuildOptions("cpu", 4, 0, on_error="fail")
        build(open_images(str(folder)), str(folder), folder.parent / "y.zarr", backbone, fails)


def test_a_resume_with_another_network_or_other_images_is_refused(folder: Path, backbone: Backbone) -> None:
    def stop(split: str, done: int, total: int) -> None:
        if done > 10:
            raise KeyboardInterrupt

    target, options = folder.parent / "x.zarr", BuildOptions("cpu", 4, 0, layout={"chunk_rows": 8})
    with pytest.raises(KeyboardInterrupt):
        build(open_images(str(folder)), str(folder), target, backbone, options, stop)
    other = load_backbone("small", random_weights=True, seed=2)
    with pytest.raises(ActstoreError, match="differ in weights_sha256"):
        build(open_images(str(folder)), str(folder), target, other, options)
    with pytest.raises(InvalidInputError, match="holds activations of dim"):
        build(open_images(str(folder)), str(folder), target, load_backbone("simple", random_weights=True), options)
    (folder / "train/ant/00.png").write_bytes((folder / "train/ant/0.png").read_bytes())
    with pytest.raises(ActstoreError, match="differ in images, listing"):
        build(open_images(str(folder)), str(folder), target, backbone, options)
    (folder / "train/ant/00.png").unlink()
    store = build(open_images(str(folder)), str(folder), target, backbone, options)
    assert len(store["train"]) == 27
    content = store["train"].content
    assert build(open_images(str(folder)), str(folder), target, backbone, options)["train"].content == content
    with pytest.raises(InvalidInputError, match="finished split 'train' of another build"):
        build(open_images(str(folder)), str(folder), target, other, options)


@pytest.mark.numeric
def test_a_bad_chunk_is_built_again_from_its_images(folder: Path) -> None:
    from actstore.upkeep.repair import repair_faults
    from actstore.upkeep.verify import verify_store

    (folder / "train/bee/4.png").write_bytes(b"broken")
    untrained = load_backbone("small", random_weights=True)
    options = BuildOptions("cpu", 7, 0, layout={"chunk_rows": 8})
    store = build(open_images(str(folder)), str(folder), folder.parent / "x.zarr", untrained, options)
    chunk, labels = store.path / "train/activations/c/2/0", store.path / "train/labels/c/0"
    before = chunk.read_bytes(), labels.read_bytes()
    chunk.unlink()
    labels.write_bytes(b"x")
    outcomes = repair_faults(store, verify_store(store))
    assert [said for _, said in outcomes] == ["repaired from its source"] * 2
    assert (chunk.read_bytes(), labels.read_bytes()) == before
    chunk.unlink()
    (folder / "train/ant/new.png").write_bytes((folder / "train/ant/0.png").read_bytes())
    ((_, said),) = repair_faults(store, verify_store(store))
    assert "no longer those the split was built from" in said


def test_glyphs_are_a_source(tmp_path: Path, backbone: Backbone) -> None:
    store = build(open_images("glyphs:5x3x2"), "glyphs:5x3x2", tmp_path / "g.zarr", backbone, BuildOptions("cpu", 4, 0))
    assert {name: len(store[name]) for name in store.splits} == {"train": 15, "val": 10}
    with pytest.raises(InvalidInputError, match="CLASSESxTRAINxVAL"):
        open_images("glyphs:many")


BUILD = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from actstore.backbones.loading import load_backbone
from actstore.extraction.build import BuildOptions, build
from actstore.images.opening import open_images
backbone = load_backbone("small", random_weights=True, seed=1)
sets = open_images(sys.argv[1])
print("go", flush=True)
build(sets, sys.argv[1], Path(sys.argv[2]), backbone, BuildOptions("cpu", 7, 0, layout={"chunk_rows": 16}))
"""


@pytest.mark.slow
def test_killed_builds_resume_to_the_same_bytes(folder: Path) -> None:
    """A smaller sister of tests/bench/soak.py; one image is unreadable, so rows and images differ in number."""
    (folder / "train/bee/4.png").write_bytes(b"broken")

    def start(store: Path) -> Any:
        child = subprocess.Popen([sys.executable, "-c", BUILD, folder, store], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        return child

    whole, killed = folder.parent / "whole.zarr", folder.parent / "killed.zarr"
    begin = time.perf_counter()
    with start(whole) as child:
        assert child.wait() == 0
    duration, random = min(1.0, time.perf_counter() - begin), np.random.default_rng(1)
    for _ in range(3):
        with start(killed) as child:
            time.sleep(random.uniform(0, duration))
            child.send_signal(signal.SIGKILL)
    with start(killed) as child:
        assert child.wait() == 0
    assert files(killed) == files(whole)
    ids = list(actstore.open(killed)["train"].ids)
    assert len(ids) == len(set(ids)) == 26


def test_an_interrupted_build_goes_on_within_its_first_chunk(folder: Path, backbone: Backbone) -> None:
    """A chunk may hold all images; what came before Ctrl-C is not computed again, unreadable ones or not."""
    (folder / "train/bee/0.png").write_bytes(b"broken")
    whole, target, seen = folder.parent / "whole.zarr", folder.parent / "x.zarr", list[int]()
    sets, options = open_images(str(folder)), BuildOptions("cpu", 4, 0)
    build(sets, str(folder), whole, backbone, options)

    def stop(split: str, done: int, total: int) -> None:
        seen.append(done)
        if done in (12, 20):
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            build(sets, str(folder), target, backbone, options, stop)
    assert actstore.open(target).unfinished_rows("train") == 19
    store = build(sets, str(folder), target, backbone, options, stop)
    assert store.unfinished_rows("train") == 0
    assert seen[:6] == [4, 8, 12, 16, 20, 24]
    assert files(target) == files(whole)
