"""The finished store is plain Zarr: others read the same values without us."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import actstore
from actstore.layout.ledger import decode_chunk, encode_chunk
from actstore.layout.zarr_arrays import encode_compressed
from actstore.spec import StoreSpec
from actstore.storage.atomic_file import crc32c

LAYOUTS: list[dict[str, Any]] = [{}, {"codec": "blosc"}, {"shard_inner_rows": 12}, {"dtype": "f4"}]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_zarr_python_alone(make_store: Any, layout: dict[str, Any]) -> None:
    store = make_store(**layout)
    store["train"].statistics()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no file in the hierarchy may surprise a reader
        group = zarr.open_group(store.path, mode="r")
        names = set(group["train"].keys())
    assert names >= {"activations", "labels", "path_bytes", "path_offsets", "class_mean"}
    np.testing.assert_array_equal(group["train/activations"][:], store.values)
    np.testing.assert_array_equal(group["train/labels"][:], store.labels)
    offsets, data = group["train/path_offsets"][:], group["train/path_bytes"][:].tobytes()
    assert [data[a:b].decode() for a, b in pairwise(offsets)] == store.ids
    assert group.attrs["actstore"]["classes"] == list(store.classes)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_tensorstore(make_store: Any, layout: dict[str, Any]) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    store = make_store(**layout)

    def read(name: str) -> np.ndarray:
        place = {"driver": "file", "path": str(store.path / "train" / name)}
        return np.asarray(tensorstore.open({"driver": "zarr3", "kvstore": place}, read=True).result().read().result())

    np.testing.assert_array_equal(read("activations"), store.values)
    np.testing.assert_array_equal(read("labels"), store.labels)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_xarray_opens_a_split_as_one_data_set(make_store: Any, layout: dict[str, Any]) -> None:
    xarray = pytest.importorskip("xarray")
    store = make_store(**layout)
    store["train"].statistics()
    found = xarray.open_zarr(store.path, group="train", consolidated=False)
    np.testing.assert_array_equal(found["activations"], store.values)
    np.testing.assert_array_equal(found["labels"], store.labels)
    assert dict(found.sizes) == {
        "row": 1000, "feature": 64, "class": 7, "id_bound": 1001, "id_byte": sum(map(len, store.ids)),
    }  # fmt: skip
    of_three = found["activations"].isel(row=found["labels"].values == 3)
    np.testing.assert_allclose(of_three.mean("row", dtype=float), found["class_mean"][3], rtol=1e-6)


def test_every_array_names_its_dimensions_also_after_an_append(make_store: Any) -> None:
    store = make_store()
    with store.writer("train") as writer:
        writer.append(store.values[:5], store.labels[:5], store.ids[:5])
    store["train"].statistics()
    group = zarr.open_group(store.path, mode="r")["train"]
    named = {name: array.metadata.dimension_names for name, array in group.arrays()}
    assert len(named) == 7
    assert all(len(names) == group[name].ndim for name, names in named.items())


def test_a_store_of_an_earlier_release_can_be_appended_to(make_store: Any) -> None:
    store = make_store()
    for name in ("labels", "path_offsets", "path_bytes"):
        file = store.path / "train" / name / "zarr.json"
        document = json.loads(file.read_text())
        del document["dimension_names"], document["attributes"]["checksum"]
        file.write_text(json.dumps(document))
    with actstore.open(store.path).writer("train") as writer:
        writer.append(store.values[:5], store.labels[:5], store.ids[:5])
    again = actstore.open(store.path)["train"]
    np.testing.assert_array_equal(again[-5:], store.values[:5])
    assert list(again.ids) == [*store.ids, *store.ids[:5]]


def node_modules() -> Path | None:
    """Where the npm package zarrita lies, if anywhere: $ACTSTORE_NODE_MODULES, this folder's, or the global ones."""
    if shutil.which("node") is None:
        return None
    named = os.environ.get("ACTSTORE_NODE_MODULES")
    places = [Path(named)] if named else [Path(__file__).parents[3] / "node_modules"]
    if not named and shutil.which("npm"):
        places.append(Path(subprocess.run(["npm", "root", "-g"], capture_output=True, text=True).stdout.strip()))
    return next((place for place in places if (place / "zarrita").is_dir()), None)


def test_zarrita(make_store: Any, tmp_path: Path) -> None:
    modules = node_modules()
    if modules is None:
        pytest.skip("node with zarrita is not here; `npm install zarrita`, then set ACTSTORE_NODE_MODULES")
    store = make_store(dtype="f4")  # node has fp16 arrays from version 24 on
    (tmp_path / "node_modules").symlink_to(modules.resolve())
    (tmp_path / "read.mjs").write_text(
        """
        import * as zarr from "zarrita";
        import FileSystemStore from "@zarrita/storage/fs";
        const root = zarr.root(new FileSystemStore(process.argv[2])), found = {};
        for (const name of ["activations", "labels", "path_offsets", "path_bytes"]) {
            const array = await zarr.open.v3(root.resolve("train/" + name), {kind: "array"});
            const {data, shape} = await zarr.get(array);
            found[name] = {shape, dimensions: array.dimensionNames, values: Array.from(data, Number)};
        }
        console.log(JSON.stringify(found));
        """
    )
    ran = subprocess.run(["node", "read.mjs", store.path], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["activations"]["dimensions"] == ["row", "feature"]
    np.testing.assert_array_equal(np.reshape(found["activations"]["values"], (1000, 64)), store.values)
    np.testing.assert_array_equal(found["labels"]["values"], store.labels)
    offsets, data = found["path_offsets"]["values"], bytes(found["path_bytes"]["values"])
    assert [data[a:b].decode() for a, b in pairwise(offsets)] == store.ids


@pytest.mark.parametrize("inner", [1, 8, 96])
def test_shards_are_those_that_zarr_writes(random: Any, inner: int) -> None:
    spec = StoreSpec(("a",), 64, chunk_rows=96, shard_inner_rows=inner)
    values = random.random((96, 64), dtype=np.float32).astype(np.float16)
    ours = b"".join(bytes(part) for part in encode_chunk(spec, values, crc32c(values)))
    assert ours == encode_compressed(spec, values)
    np.testing.assert_array_equal(decode_chunk(spec, np.frombuffer(ours, np.uint8)), values)


def test_a_lost_chunk_is_nan_to_other_readers(make_store: Any) -> None:
    store = make_store()
    (store.path / "train/activations/c/1/0").unlink()
    assert np.isnan(zarr.open_array(store.path / "train/activations", mode="r")[96:192]).all()
