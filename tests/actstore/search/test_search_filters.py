"""Searches of some rows have the answers of a brute force over them, in every engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import actstore
from actstore.compute.tensors import one_thread
from actstore.errors import InvalidInputError
from actstore.search import BoundedSearch, ExactSearch, approximate, bounded, bounded_pass, exact, level_building
from actstore.search.indexing import build_index
from actstore.spec import INDEX_KINDS

pytestmark = pytest.mark.numeric
ROWS, DIM = 1500, 48


def some_rows(seed: int, rows: int = ROWS) -> NDArray[np.float16]:
    random = np.random.default_rng(seed)
    values = random.standard_normal((rows, 5)) @ random.standard_normal((5, DIM)) + 0.1 * random.standard_normal(
        (rows, DIM)
    )
    values[random.integers(0, rows, rows // 10)] = values[0]
    return values.astype(np.float16)


def brute_force(
    values: NDArray[np.float16], queries: NDArray[np.float32], k: int, rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(n, k) the highest cosines among the rows."""
    exact_rows, asked = values[rows].astype(np.float64), queries.astype(np.float64)
    norms = np.linalg.norm(exact_rows, axis=1) * np.linalg.norm(asked, axis=1)[:, None]
    return -np.sort(-(asked @ exact_rows.T) / norms, axis=1)[:, :k]


def assert_right(
    found: Any, values: NDArray[np.float16], queries: NDArray[np.float32], rows: NDArray[np.int64]
) -> None:
    scores, places = found
    np.testing.assert_allclose(scores, brute_force(values, queries, scores.shape[1], rows), atol=1e-6)
    assert np.isin(places, rows).all()
    own = np.take_along_axis(brute_force(values, queries, len(rows), rows), np.zeros((len(queries), 1), int), 1)
    np.testing.assert_allclose(scores[:, :1], own, atol=1e-6)
    equal = scores[:, :-1] == scores[:, 1:]
    assert (places[:, :-1] < places[:, 1:])[equal].all()  # ties by row
    assert all(len(set(line)) == len(line) for line in places.tolist())


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    share=st.sampled_from([0.01, 0.1, 0.29, 0.5, 0.9, 1.0]),
    in_one=st.booleans(),
    queries=st.sampled_from([1, 2, 3, 33]),
    k=st.integers(1, 6),
    widths=st.sampled_from([(16,), (16, 24)]),
)
def test_some_rows_are_searched_as_by_brute_force(
    seed: int, share: float, in_one: bool, queries: int, k: int, widths: tuple[int, ...]
) -> None:
    values, random = some_rows(seed), np.random.default_rng(seed)
    count = max(k, int(share * ROWS))
    start = int(random.integers(0, ROWS - count + 1))
    rows = np.arange(start, start + count) if in_one else np.sort(random.choice(ROWS, count, replace=False))
    asked = some_rows(seed + 1, 40)[:queries].astype(np.float32)
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.setattr(level_building, "choose_widths", lambda *_: widths)
        for name, value in (("_RANGE_ROWS", (64, 128)), ("_MOST_LEFT", 2.0)):
            patch.setattr(bounded_pass, name, value)
        patch.setattr(bounded, "_FEWEST", 10)
        patch.setattr(exact, "_SCORES", 4096)  # several blocks
        bound = BoundedSearch.build(values)
        found = bound.search(asked, k, rows)
        assert_right(found, values, asked, rows)
        for engine in (bound.exact, ExactSearch(values.astype(np.float32))):
            np.testing.assert_array_equal(engine.search(asked, k, rows)[1], found[1])
        inner = ExactSearch(values, "inner").search(asked, k, rows)
        products = asked.astype(np.float64) @ values[rows].astype(np.float64).T
        np.testing.assert_allclose(inner[0], -np.sort(-products, axis=1)[:, :k], rtol=1e-5, atol=1e-5)


def test_a_batch_is_rotated_once_for_several_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level_building, "choose_widths", lambda *_: (16, 16))
    monkeypatch.setattr(bounded, "_FEWEST", 10)
    values, asked = some_rows(7), some_rows(8, 40).astype(np.float32)
    engine, made = BoundedSearch.build(values), []
    kind = bounded.QueryCodes
    monkeypatch.setattr(bounded, "QueryCodes", lambda *given: made.append(kind(*given)) or made[-1])
    for queries, expected in ((asked[:33], 1), (asked[:32], 2), (asked[1:33], 3)):
        for rows in (np.arange(0, ROWS, 2), np.arange(700), None):
            searched = np.arange(ROWS) if rows is None else rows
            assert_right(engine.search(queries, 3, rows), values, queries, searched)
        assert len(made) == expected


@pytest.mark.parametrize("kind", INDEX_KINDS)
def test_approximate_indexes_find_only_rows_asked_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = some_rows(4, 3000)
    rows = np.sort(np.random.default_rng(0).choice(3000, 1200, replace=False))
    queries = some_rows(5, 40).astype(np.float32)
    with one_thread():
        engine = build_index(values, kind, dims=32, lists=None if kind == "hnsw" else 8, recall=0.9)
        few = engine.search(queries, 5, rows)  # directly
        np.testing.assert_array_equal(few[1], ExactSearch(values).search(queries, 5, rows)[1])
        monkeypatch.setattr(approximate, "_EXACT_ROWS", 10)
        scores, found = engine.search(queries, 5, rows)  # by the index
    assert np.isin(found, rows).all()
    assert (scores <= few[0]).all()
    assert (found[:, 0] == few[1][:, 0]).mean() > 0.8
    np.testing.assert_array_equal(scores[found == few[1]], few[0][found == few[1]])


def test_a_split_is_filtered_by_class_id_and_row(tmp_path: Path) -> None:
    values, labels = some_rows(6), np.arange(ROWS) % 3
    ids = [f"{'even' if row % 2 == 0 else 'odd'}/{row}.jpg" for row in range(ROWS)]
    train = actstore.from_arrays(tmp_path / "x.zarr", {"train": (values, labels, ids)}, classes=["a", "b", "c"])[
        "train"
    ]
    queries = values[:4].astype(np.float32)
    for filters in (
        {"classes": ["b"]}, {"classes": ["a", "c"], "path_glob": "even/*"}, {"rows": "100:400"},
        {"rows": [7, 3, 90, 3]}, {"classes": ["c"], "rows": slice(0, 1400)},
    ):  # fmt: skip
        rows = train.query(**filters)
        found = train.search(queries, 3, **filters)
        assert_right(found, values, queries, rows)
    with pytest.raises(InvalidInputError, match=r"no row of split 'train' .* satisfies every filter"):
        train.search(queries, 1, classes=["a"], rows=[1])
    with pytest.raises(InvalidInputError, match="k is 5, but only 3 rows"):
        train.search(queries, 5, rows=[1, 2, 3])


def test_one_query_in_half_precision_is_searched_alike(random: np.random.Generator) -> None:
    """Rows far too long or short for float16 sums are converted instead."""
    for scale in (1.0, 1e-6, 200.0):
        values = (random.standard_normal((4000, 512)) * scale).astype(np.float16)
        values[5] = 0
        found = ExactSearch(values).search(values[17].astype(np.float32), 8)
        expected = ExactSearch(values.astype(np.float32)).search(values[17].astype(np.float32), 8)
        np.testing.assert_array_equal(found[1], expected[1])
        np.testing.assert_array_equal(found[0], expected[0])


def test_compressed_stores_are_filtered(make_store: Callable[..., Any]) -> None:
    store = make_store(rows=900, codec="blosc", chunk_rows=128)
    rows = np.arange(3, 900, 2)
    scores, found = store["train"].search(store.values[:3], 4, rows=rows)
    assert (found % 2 == 1).all()
    np.testing.assert_allclose(
        scores, brute_force(store.values, store.values[:3].astype(np.float32), 4, rows), atol=1e-6
    )


@pytest.mark.parametrize("rows", [[-1, 2], [3, ROWS], [5, 4], [4, 4], [0.5, 1.0], [[1, 2]]])
def test_rows_that_are_none_of_the_table_are_refused(rows: Any) -> None:
    engine = ExactSearch(some_rows(0))
    with pytest.raises(InvalidInputError, match="rows must"):
        engine.search(some_rows(1, 2).astype(np.float32), 1, np.array(rows))


def test_no_query_among_some_rows_has_no_answer() -> None:
    engine = ExactSearch(some_rows(0))
    assert engine.search(np.empty((0, engine.table.dim), np.float32), 3, np.arange(10))[1].shape == (0, 3)
