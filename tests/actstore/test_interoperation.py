"""The finished store is plain Zarr: others read the same values without us."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import zarr

from actstore.chunkfile import crc32c
from actstore.encoding import decode_chunk, encode_chunk
from actstore.hierarchy import encode_compressed
from actstore.spec import StoreSpec

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
