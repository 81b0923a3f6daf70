"""xarray over a split: lazy, indexed as numpy indexes, with ids, classes and columns beside the rows."""

from __future__ import annotations

import pickle
import tomllib
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

import actstore
from actstore.analysis.xarray_backend import ActstoreBackend
from actstore.errors import MissingSplitError, NotAStoreError

ROOT = Path(__file__).parents[3]


@pytest.fixture(params=["raw", "blosc"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, random: np.random.Generator) -> tuple[Any, Any, Any]:
    """The data set, the values and the path."""
    values = random.random((200, 16), dtype=np.float32).astype(np.float16)
    labels = random.integers(-1, 3, 200)
    ids = [f"ä{row}.jpg" for row in range(200)]
    columns = {"area": random.random(200), "source": np.array(["web", "print"] * 100, object), "width": np.arange(200)}
    path = tmp_path / "x.zarr"
    splits = {"train": (values, labels, ids, columns), "val": (values[:9], labels[:9])}
    actstore.from_arrays(path, splits, classes=["a", "b", "c"], codec=request.param)
    return xarray.open_dataset(path, engine=ActstoreBackend, group="train"), values, path


@pytest.mark.parametrize("key", [
    7, -1, slice(3, 90), slice(150, 3, -4), [5, 5, 190, 0], np.arange(200) % 3 == 0, (slice(9), [3, 1]),
    ([4, 2, 9], slice(5)), ([4, 2, 9], 3), ([4, 2, 9], [1, 0]), (3, 4), (slice(0), slice(None)),
], ids=str)  # fmt: skip
def test_indexing_is_outer_as_xarray_has_it(opened: Any, key: Any) -> None:
    dataset, values, _ = opened
    expected = xarray.DataArray(values, dims=("row", "feature"))[key]
    np.testing.assert_array_equal(dataset.activations[key].values, expected.values)


def test_pointwise_indexing(opened: Any) -> None:
    dataset, values, _ = opened
    rows, features = xarray.DataArray([3, 9, 1], dims="point"), xarray.DataArray([0, 2, 2], dims="point")
    np.testing.assert_array_equal(
        dataset.activations.isel(row=rows, feature=features).values, values[[3, 9, 1], [0, 2, 2]]
    )


def test_rows_are_not_read_before_they_are_asked_for(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, values, path = opened
    seen = []
    reader = type(actstore.open(path)["train"].rows)
    take = reader.take
    monkeypatch.setattr(reader, "take", lambda self, rows: seen.append(len(rows)) or take(self, rows))
    some = dataset.activations[[9, 100, 3]]
    assert not seen
    np.testing.assert_array_equal(some.values, values[[9, 100, 3]])
    assert seen == [3]


def test_coordinates_follow_the_rows(opened: Any) -> None:
    dataset, _, path = opened
    split = actstore.open(path)["train"]
    names = [*split.classes, ""]
    some = dataset.isel(row=[150, 2])
    assert some.id.values.tolist() == [split.ids[150], split.ids[2]]
    assert some.class_name.values.tolist() == [names[split.labels[150]], names[split.labels[2]]]
    np.testing.assert_array_equal(some.label.values, split.labels[[150, 2]])
    np.testing.assert_array_equal(some["area"].values, split.columns["area"][[150, 2]])
    assert some.source.values.tolist() == ["web", "web"]
    assert dataset.width.dtype == np.int64
    assert dataset.id[3].item() == split.ids[3]
    assert dataset.attrs["content"] == split.content
    only = dataset.isel(row=(dataset.class_name == "b").values)
    assert set(only.label.values.tolist()) == {split.classes.index("b")}
    assert dataset.set_xindex("id").sel(id=split.ids[17]).label == split.labels[17]


def test_dask_and_pickle(opened: Any) -> None:
    dataset, values, path = opened
    chunked = xarray.open_dataset(path, engine=ActstoreBackend, group="train", chunks={})
    assert chunked.activations.chunksizes["feature"] == (16,)
    np.testing.assert_allclose(chunked.activations.astype("f8").mean("row").values, values.astype("f8").mean(0))
    again = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_array_equal(again.activations[5:7].values, values[5:7])
    assert again.id.values[5] == "ä5.jpg"


def test_groups_defaults_and_dropped_variables(opened: Any) -> None:
    path = opened[2]
    assert xarray.open_dataset(path, engine=ActstoreBackend).sizes["row"] == 200  # train
    assert set(xarray.open_groups(path, engine=ActstoreBackend)) == {"/", "/train", "/val"}
    assert set(xarray.open_datatree(path, engine=ActstoreBackend).children) == {"train", "val"}
    bare = xarray.open_dataset(path, engine=ActstoreBackend, group="/val", drop_variables=["id", "activations"])
    assert set(bare.variables) == {"label", "class_name"}
    with pytest.raises(MissingSplitError, match="test"):
        xarray.open_dataset(path, engine=ActstoreBackend, group="test")
    with pytest.raises(NotAStoreError, match=r"no\.zarr"):
        xarray.open_dataset(path.parent / "no.zarr", engine=ActstoreBackend)


def test_the_engine_is_named_to_xarray() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["xarray.backends"]
    module, _, name = points["actstore"].partition(":")
    assert getattr(import_module(module), name) is ActstoreBackend


def test_the_engine_opens_by_its_name(opened: Any) -> None:
    if "actstore" not in entry_points(group="xarray.backends").names:
        pytest.skip("installed before there was a backend: pip install -e . names it to xarray")
    _, values, path = opened
    dataset = xarray.open_dataset(str(path), engine="actstore", group="train")
    np.testing.assert_array_equal(dataset.activations[3].values, values[3])
