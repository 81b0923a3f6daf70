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
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec

import actstore
from actstore.layout.columns import expected_document, flat_arrays
from actstore.layout.ledger import decode_chunk, encode_chunk
from actstore.spec import ColumnSpec, SplitSpec, StoreSpec
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


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("codec", ["raw", "blosc"])
@pytest.mark.parametrize("inner", [None, 1, 12, 96])
def test_chunks_and_metadata_are_those_that_zarr_writes(
    tmp_path: Path, random: Any, dtype: Any, codec: Any, inner: int | None
) -> None:
    spec = StoreSpec(("a",), 64, dtype, chunk_rows=96, codec=codec, shard_inner_rows=inner)
    values = random.random((96, 64), dtype=np.float32).astype(dtype)
    values[60:] = 0
    blosc = [BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle")] if codec == "blosc" else []
    array = zarr.create_array(
        tmp_path / "x", shape=(96, 64), dtype=dtype, chunks=(inner or 96, 64), shards=(96, 64) if inner else None,
        filters=None, serializer=BytesCodec(endian="little"), compressors=[*blosc, Crc32cCodec()],
        fill_value=float("nan"), dimension_names=("row", "feature"), zarr_format=3,
    )  # fmt: skip
    array[...] = values
    ours = b"".join(bytes(part) for part in encode_chunk(spec, values, crc32c(values)))
    assert ours == (tmp_path / "x/c/0/0").read_bytes()
    np.testing.assert_array_equal(decode_chunk(spec, np.frombuffer(ours, np.uint8)), values)
    document = expected_document("activations", spec, SplitSpec(rows=96))
    assert json.dumps(document) == json.dumps(json.loads((tmp_path / "x/zarr.json").read_text()))


@pytest.mark.parametrize("kind", ["bool", "int", "float", "date"])
def test_metadata_of_columns_are_those_that_zarr_writes(tmp_path: Path, kind: Any) -> None:
    split = SplitSpec(rows=70, columns=(ColumnSpec("x", kind),))
    layout, _ = flat_arrays(split)["x"]
    zarr.create_array(
        tmp_path / "x", shape=(70,), dtype=layout.dtype, chunks=layout.chunks, filters=None,
        serializer=BytesCodec(endian=None if kind == "bool" else "little"), compressors=[Crc32cCodec()],
        fill_value=layout.fill, attributes=dict(layout.attributes), dimension_names=("row",), zarr_format=3,
    )  # fmt: skip
    document = expected_document("x", StoreSpec(("a",), 64), split)
    assert json.dumps(document) == json.dumps(json.loads((tmp_path / "x/zarr.json").read_text()))


def test_a_lost_chunk_is_nan_to_other_readers(make_store: Any) -> None:
    store = make_store()
    (store.path / "train/activations/c/1/0").unlink()
    assert np.isnan(zarr.open_array(store.path / "train/activations", mode="r")[96:192]).all()
