"""Approximate indexes: recall on queries they do not hold, exact scores, and their place beside the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import actstore
from actstore.compute.tensors import one_thread
from actstore.errors import DamagedError, InvalidInputError
from actstore.search import ExactSearch
from actstore.search.approximate import ApproximateSearch, IndexSettings, row_order
from actstore.search.index_files import find, folder
from actstore.search.indexing import build_index, measure_recall
from actstore.spec import INDEX_KINDS

pytestmark = pytest.mark.numeric

ROWS, DIM = 2500, 48


def clustered(random: np.random.Generator, rows: int) -> NDArray[np.float16]:
    centres = np.random.default_rng(1).standard_normal((20, DIM))
    return (centres[random.integers(0, 20, rows)] + 0.4 * random.standard_normal((rows, DIM))).astype(np.float16)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Training a few cells is over before threads have found each other."""
    with one_thread():
        yield


@pytest.fixture
def store(tmp_path: Path, random: np.random.Generator) -> actstore.ActivationStore:
    values = {name: clustered(random, rows) for name, rows in (("train", ROWS), ("val", 200))}
    arrays = {name: (rows, np.zeros(len(rows), np.int64)) for name, rows in values.items()}
    return actstore.from_arrays(tmp_path / "x.zarr", arrays, classes=["one"])


@pytest.mark.parametrize("kind", INDEX_KINDS)
def test_recall_is_reached_on_another_split(store: actstore.ActivationStore, kind: str) -> None:
    train, queries = store["train"], store["val"][:]
    engine = build_index(train, kind, dims=32, lists=16, queries=queries[:100], recall=0.9)
    assert engine.settings.recall >= 0.9
    assert engine.settings.queries == 100
    scores, rows = engine.search(queries[100:], 5)
    exact_scores, exact_rows = ExactSearch(train).search(queries[100:], 5)
    assert (rows[:, 0] == exact_rows[:, 0]).mean() > 0.8
    found = rows[:, 0] == exact_rows[:, 0]
    np.testing.assert_array_equal(scores[found, 0], exact_scores[found, 0])  # to the last bit: scored from the store
    assert (scores[:, 0] <= exact_scores[:, 0]).all()
    assert engine.nbytes > ROWS


def test_held_out_rows_are_not_in_the_index_that_is_measured(store: actstore.ActivationStore) -> None:
    """A row of the index would find itself: recall measured on those is always high."""
    train = store["train"]
    engine = build_index(train, "ivf", dims=32, lists=16, recall=0.5)
    held = np.array(engine.settings.held_out)
    assert len(held) == engine.settings.queries == ROWS // 10
    assert engine.index.ntotal == ROWS
    np.testing.assert_array_equal(np.sort(engine.order), np.arange(ROWS))
    # now that they are in, each finds itself
    assert (engine.search(train.take(held), 1, effort=16)[1][:, 0] == held).all()
    rest = np.setdiff1d(np.arange(ROWS), held)
    truth = rest[ExactSearch(train.take(rest)).search(train.take(held), 1)[1][:, 0]]
    without = build_index(train.take(rest), "ivf", dims=32, lists=16, queries=train.take(held), recall=0.5)
    again = measure_recall(without, train.to_torch(held).float(), np.searchsorted(rest, truth), engine.settings.effort)
    assert engine.settings.recall == pytest.approx(again, abs=0.1)  # other cells, as the directions differ a little


def test_an_index_is_saved_and_loaded(store: actstore.ActivationStore) -> None:
    queries = store["val"][:20]
    engine = build_index(store["train"], "ivf-sq", dims=32, lists=16)
    engine.save()
    loaded = ApproximateSearch.load(actstore.open(store.path)["train"], "ivf-sq")
    assert loaded.settings == engine.settings
    expected = engine.search(queries, 3)
    split = actstore.open(store.path)["train"]
    for answer in (
        loaded.search(queries, 3),
        split.search(queries, 3, exact=False),
        split.search(queries, 3, method="ivf-sq"),
    ):
        np.testing.assert_array_equal(answer[1], expected[1])
        np.testing.assert_array_equal(answer[0], expected[0])
    build_index(split, "ivf", dims=32, lists=16).save()
    with pytest.raises(InvalidInputError, match=r"several indexes are built \(ivf, ivf-sq\)"):
        actstore.open(store.path)["train"].search(queries, 3, exact=False)


def test_an_index_of_other_rows_is_refused(store: actstore.ActivationStore, make_store: Callable[..., Any]) -> None:
    build_index(store["train"], "ivf", dims=32, lists=16).save()
    other = make_store(rows=1200, name="other.zarr")
    folder(other["train"]).mkdir(parents=True)
    for file in folder(store["train"]).iterdir():  # as if somebody had copied them
        (folder(other["train"]) / file.name).write_bytes(file.read_bytes())
    with pytest.raises(InvalidInputError, match=r"built for other rows .*actstore index .*other.zarr .*--kind ivf"):
        other["train"].search(np.ones(64), 1, method="ivf")


def test_damage_is_named(store: actstore.ActivationStore) -> None:
    build_index(store["train"], "ivf", dims=32, lists=16).save()
    found = find(store["train"], "ivf")
    assert found is not None
    found[0].write_bytes(b"\xff" * found[0].stat().st_size)
    with pytest.raises(DamagedError, match=r"is damaged: its checksum is not the one in ivf\.json"):
        ApproximateSearch.load(store["train"], "ivf")
    note = found[0].with_name("ivf.json")
    document = json.loads(note.read_bytes())
    note.write_text(json.dumps({key: value for key, value in document.items() if key not in ("crc", "checksum")}))
    with pytest.raises(DamagedError, match="cannot be read"):  # of before there were checksums
        ApproximateSearch.load(store["train"], "ivf")


def test_where_too_few_rows_are_visited_more_are(store: actstore.ActivationStore) -> None:
    engine = build_index(store["train"], "ivf", dims=32, lists=60, recall=0.1)
    rows = engine.search(np.ones(DIM), 1500, effort=1)[1]
    assert len(set(rows[0].tolist())) == 1500


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"kind": "lsh"}, "kind of an approximate index must be"),
    "odd dims": ({"dims": 7}, "dims must be an even number from 2 to 48"),
    "many dims": ({"dims": 50}, "dims must be an even number from 2 to 48"),
    "lists": ({"lists": 100}, "lists must be 1 to 62"),
    "refine": ({"refine": 0}, "refine must be positive"),
    "recall": ({"recall": 0.0}, "recall must be above 0"),
    "queries": ({"queries": np.full((1, DIM), np.nan)}, "query 0 holds a NaN"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_are_refused(random: np.random.Generator, case: str) -> None:
    options, message = BAD[case]
    with pytest.raises(InvalidInputError, match=message):
        build_index(clustered(random, ROWS), **{"kind": "ivf", "dims": 16, "lists": 16, **options})


def test_few_rows_and_tensors(random: np.random.Generator) -> None:
    with pytest.raises(InvalidInputError, match="needs 1,000 rows"):
        build_index(clustered(random, 999))
    with pytest.raises(InvalidInputError, match="no store to be saved beside"):
        build_index(clustered(random, 1000), "ivf", dims=16, lists=4).save()


def test_the_order_of_rows() -> None:
    settings = IndexSettings("ivf", 2, 1, 1, 1, held_out=(1, 4))
    np.testing.assert_array_equal(row_order(6, settings), [0, 2, 3, 5, 1, 4])
    np.testing.assert_array_equal(row_order(3, replace(settings, held_out=())), [0, 1, 2])
    extended = replace(settings, extended=((6, (7,)), (9, ())))
    np.testing.assert_array_equal(row_order(11, extended), [0, 2, 3, 5, 1, 4, 6, 8, 7, 9, 10])
