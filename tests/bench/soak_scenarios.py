"""Commands that `tests.bench.soak` kills, the data they read, and how what they leave is compared."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

import actstore
from actstore.storage.object_path import ObjectPath
from actstore.storage.place import Place
from tests.bench.common import digest


@dataclass(frozen=True)
class Scenario:
    """A command that makes `target`; {target} in its arguments is where."""

    tool: str
    arguments: list[str]
    target: Callable[[Path, str], Place]
    pace: float = 0.01
    prepare: Callable[[Place], None] = lambda place: None
    check: Callable[[Place], None] = lambda place: None  # after every kill
    is_same: Callable[[Place, Place], bool] = lambda ours, theirs: content(ours) == content(theirs)


def content(place: Place) -> dict[str, Any]:
    """Every file of a store or folder."""
    if isinstance(place, Path):
        return dict(digest(place))
    import obstore

    from actstore.storage.bucket_client import bucket_of

    bucket = bucket_of(place.root)
    keys = [entry["path"] for page in obstore.list(bucket, place.key) for entry in page]
    return {key[len(place.key) :]: bytes(obstore.get(bucket, key).bytes()) for key in keys}


def make_data(folder: Path) -> None:
    """Arrays, pictures and a store to begin with, the same for the same folder."""
    from actstore.images.glyphs import write_glyphs

    random = np.random.default_rng(0)
    for name, rows in (("base", 700), ("more", 3000)):
        np.save(folder / f"{name}.npy", random.random((rows, 64), dtype=np.float32))
        np.save(folder / f"{name}-labels.npy", np.arange(rows) % 7)
        (folder / f"{name}-ids.txt").write_text("".join(f"{name}/{row}.jpg\n" for row in range(rows)))
    write_glyphs(folder / "images", 12, 25, 0)
    (folder / "images/train/broken").mkdir()
    (folder / "images/train/broken/empty.png").write_bytes(b"")  # so that rows and images differ in number
    values, labels = random.random((6000, 64), dtype=np.float32), np.arange(6000) % 20
    store = actstore.from_arrays(folder / "rows.zarr", {"train": (values, labels)})
    store["train"].statistics()  # else the first training writes them
    ids = [f"base/{row}.jpg" for row in range(700)]
    base = (np.load(folder / "base.npy"), np.load(folder / "base-labels.npy"), ids)
    actstore.from_arrays(folder / "base.zarr", {"train": base}, chunk_rows=1024)


def scenarios(data: Path, bucket: str, interval: float) -> dict[str, Scenario]:
    more = [f"{data}/more.npy", "{target}", "--labels", f"{data}/more-labels.npy", "--ids", f"{data}/more-ids.txt"]
    build = ["build", f"{data}/images", "{target}", "--backbone", "small", "--random-weights", "--workers", "0",
             "--batch-size", "4", "--chunk-rows", "128", "--device", "cpu"]  # fmt: skip
    train = ["train", "--store", f"{data}/rows.zarr", "--out", "{target}", "--epochs", "10", "--batches", "10",
             "--device", "cpu", "--checkpoint-seconds", str(interval)]  # fmt: skip
    base = actstore.open(data / "base.zarr")["train"][:]

    def copy(name: str) -> Callable[[Place], None]:
        def prepare(place: Place) -> None:
            shutil.copytree(data / name, str(place))

        return prepare

    def has_base(place: Place) -> None:
        np.testing.assert_array_equal(actstore.open(place)["train"][:700], base)

    def same_model(ours: Place, theirs: Place) -> bool:
        assert isinstance(ours, Path)
        assert isinstance(theirs, Path)
        return same(ours, theirs)

    def same_index(ours: Place, theirs: Place) -> bool:
        kept, expected = (content(place.parent / f"{place.name}.search") for place in (ours, theirs))
        return bool(kept) and kept == expected and content(ours) == content(theirs)

    def local(folder: Path, name: str) -> Path:
        return folder / f"{name}.zarr"

    def remote(folder: Path, name: str) -> ObjectPath:
        return ObjectPath.parse(f"s3://{bucket}/{name}.zarr")

    index = ["index", "{target}", "--kind"]
    return {
        "import": Scenario("actstore", ["import", *more, "--chunk-rows", "1024"], local),
        "append": Scenario("actstore", ["append", *more], local, prepare=copy("base.zarr"), check=has_base),
        "build": Scenario("actstore", build, local, 0.005),
        "bucket": Scenario("actstore", build, remote, 0.005),
        "train": Scenario("ppa", train, lambda folder, name: folder / name, is_same=same_model),
        "index": Scenario("actstore", [*index, "bounded"], local, prepare=copy("rows.zarr"), is_same=same_index),
        "index-ivf": Scenario("actstore", [*index, "ivf"], local, prepare=copy("rows.zarr"), is_same=same_index),
    }


def same(first: Path, second: Path) -> bool:
    """Whether two trained models have the same weights, bit by bit."""
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (first, second))
    return ours.keys() == theirs.keys() and all(bool((ours[name] == theirs[name]).all()) for name in ours)
