"""Exact search against float64 numpy: ties, duplicates, every block size, threads, stores and tensors. Batches narrowed
down in bfloat16: the same answer, and given up where cosines lie too close together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import actstore
from actstore.compute.tensors import spread
from actstore.errors import InvalidInputError
from actstore.search import ExactSearch, RowTable, exact, ranking
from actstore.search.exact import BfloatQueries, bfloat_pays
from actstore.search.index_files import folder
from actstore.search.table import Rows, unit

pytestmark = pytest.mark.numeric


def reference(rows: Any, queries: Any, k: int, metric: str = "cosine") -> tuple[Any, Any]:
    """All scores in float64, rounded to float32, then by (score descending, row)."""
    x, q = np.asarray(rows, np.float64), np.asarray(queries, np.float64)
    scores = (x[None] * q[:, None]).sum(2)
    if metric == "cosine":
        lengths = np.linalg.norm(q, axis=1)[:, None] * np.linalg.norm(x, axis=1)[None]
        scores = np.divide(scores, lengths, out=np.zeros_like(scores), where=lengths > 0)
    rounded = scores.astype(np.float32)
    order = np.stack([np.lexsort((np.arange(len(x)), -row)) for row in rounded])[:, :k]
    return np.take_along_axis(rounded, order, 1), order


def tied_rows(random: np.random.Generator, rows: int, dim: int) -> NDArray[np.float16]:
    """Few distinct small integers: many duplicates, rows of zeros, and rows that are multiples of others."""
    distinct = random.integers(-2, 3, (max(2, rows // 4), dim))
    scale = random.choice([1, 1, 2, 4], rows)
    return (distinct[random.integers(0, len(distinct), rows)] * scale[:, None]).astype(np.float16)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 400),
    dim=st.integers(1, 40),
    count=st.integers(1, 9),
    metric=st.sampled_from(["cosine", "inner"]),
    dtype=st.sampled_from([np.float16, np.float32]),
    data=st.data(),
)
def test_ties_are_ordered_by_row(
    seed: int, rows: int, dim: int, count: int, metric: Any, dtype: Any, data: st.DataObject
) -> None:
    random = np.random.default_rng(seed)
    values = tied_rows(random, rows, dim).astype(dtype)
    queries = values[random.integers(0, rows, count)].astype(np.float32)
    queries[~queries.any(1)] = 1
    k = data.draw(st.integers(1, rows))
    scores, found = ExactSearch(torch.from_numpy(values), metric).search(queries, k)
    expected_scores, expected = reference(values, queries, k, metric)
    np.testing.assert_array_equal(scores, expected_scores)
    np.testing.assert_array_equal(found, expected)
    assert scores.dtype == np.float32
    assert found.dtype == np.int64


@pytest.mark.parametrize("metric", ["cosine", "inner"])
def test_random_rows_are_those_of_float64(random: np.random.Generator, metric: Any) -> None:
    values = random.random((3000, 96), dtype=np.float32).astype(np.float16)
    queries = random.random((40, 96), dtype=np.float32)
    scores, found = ExactSearch(values, metric).search(queries, 7)
    expected_scores, expected = reference(values, queries, 7, metric)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(scores, expected_scores, rtol=2e-7)


def test_the_answer_depends_neither_on_blocks_nor_on_threads(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = tied_rows(random, 5000, 24)
    queries = random.standard_normal((17, 24)).astype(np.float32)
    answers = []
    for scores, buffer, threads in ((1 << 18, 1 << 18, 1), (1 << 11, 1 << 10, 2), (1 << 14, 1 << 9, 3)):
        monkeypatch.setattr(exact, "_SCORES", scores)
        monkeypatch.setattr("actstore.search.table._BUFFER", buffer)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            answers.append(ExactSearch(values).search(queries, 9))
        finally:
            torch.set_num_threads(before)
    for scores, rows in answers[1:]:
        np.testing.assert_array_equal(scores, answers[0][0])
        np.testing.assert_array_equal(rows, answers[0][1])


def test_thousands_of_equal_rows_do_not_pile_up(random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "_MOST_PAIRS", 500)
    monkeypatch.setattr(exact, "_SCORES", 1 << 10)
    values = np.repeat(random.standard_normal((3, 8)).astype(np.float16), 700, axis=0)
    scores, rows = ExactSearch(values).search(values[[0, 700]].astype(np.float32), 5)
    np.testing.assert_array_equal(rows, [np.arange(5), np.arange(700, 705)])
    np.testing.assert_array_equal(scores, np.ones((2, 5)))


def test_many_queries_and_none(random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_QUERIES", 16)
    values, queries = random.standard_normal((300, 12)).astype(np.float32), random.standard_normal((50, 12))
    np.testing.assert_array_equal(
        ExactSearch(values).search(queries, 4)[1], reference(values, queries.astype(np.float32), 4)[1]
    )
    scores, rows = ExactSearch(values).search(np.empty((0, 12)), 4)
    assert scores.shape == rows.shape == (0, 4)


@pytest.mark.parametrize("codec", ["raw", "blosc"])
def test_a_split_is_searched_as_its_rows_are(make_store: Callable[..., Any], codec: str) -> None:
    store = make_store(rows=1000, codec=codec)
    queries = store.values[[5, 900]].astype(np.float32)
    expected_scores, expected = reference(store.values, queries, 6)
    for _ in range(2):  # the second time with the norms kept beside the store
        scores, rows = actstore.open(store.path)["train"].search(queries, 6)
        np.testing.assert_array_equal(rows, expected)
        np.testing.assert_allclose(scores, expected_scores, rtol=2e-7)
    assert (folder(store["train"]) / "norms.json").exists()
    scores, rows = store["train"].search(queries[0], 3, method="exact", metric="inner")
    np.testing.assert_array_equal(rows, reference(store.values, queries[:1], 3, "inner")[1])


def test_norms_of_older_content_are_not_used(make_store: Callable[..., Any], random: np.random.Generator) -> None:
    store = make_store(rows=200)
    store["train"].search(store.values[:1], 1)
    more = random.random((100, 64), dtype=np.float32).astype(np.float16)
    with store.writer("train") as writer:
        writer.append(more, np.zeros(100, np.int64), [f"new/{row}" for row in range(100)])
    values = np.concatenate([store.values, more])
    rows = store["train"].search(more[:3], 5)[1]
    np.testing.assert_array_equal(rows, reference(values, more[:3].astype(np.float32), 5)[1])


def test_nothing_is_kept_where_the_disk_refuses(make_store: Callable[..., Any]) -> None:
    store = make_store(rows=50)
    folder(store["train"]).parent.write_text("in the way")
    assert store["train"].search(store.values[:1], 1)[1][0, 0] == 0


BAD: dict[str, tuple[Any, int, str]] = {
    "k above the rows": (np.ones(8), 31, "only 30 rows"),
    "k of zero": (np.ones(8), 0, "k must be a positive"),
    "half a k": (np.ones(8), 1.5, "k must be a positive"),
    "zero vector": ([np.ones(8), np.zeros(8)], 1, "query 1 is a zero vector"),
    "NaN": ([np.ones(8), np.full(8, np.nan)], 1, "query 1 holds a NaN"),
    "beyond float32": (np.full(8, 1e300), 1, "query 0 holds a NaN or an infinity"),
    "wrong dim": (np.ones((2, 9)), 1, r"shape \(n, 8\)"),
    "three axes": (np.ones((1, 1, 8)), 1, r"shape \(n, 8\)"),
    "text": (["a"] * 8, 1, "real numbers"),
    "ragged": ([[1.0], [1.0, 2.0]], 1, r"shape \(n, 8\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_queries_are_refused_by_name(random: np.random.Generator, case: str) -> None:
    vectors, k, message = BAD[case]
    with pytest.raises(InvalidInputError, match=message):
        ExactSearch(random.standard_normal((30, 8)).astype(np.float32)).search(vectors, k)


def test_a_zero_query_has_inner_products(random: np.random.Generator) -> None:
    values = random.standard_normal((30, 8)).astype(np.float32)
    np.testing.assert_array_equal(ExactSearch(values, "inner").search(np.zeros(8), 3)[1], [[0, 1, 2]])


def test_bad_rows_and_settings_are_refused(make_store: Callable[..., Any]) -> None:
    for rows in (np.ones(5), np.ones((5, 2)), torch.ones(5, 2, dtype=torch.bfloat16)):
        with pytest.raises(InvalidInputError, match="float16 or float32"):
            RowTable(rows)
    with pytest.raises(InvalidInputError, match="row 1 has length"):
        ExactSearch(np.array([[1, 1], [3e38, 3e38]], np.float32)).search([1, 1], 1)
    split = make_store(rows=100)["train"]
    for options, message in (
        ({"method": "magic"}, "method must be one of"),
        ({"metric": "l2"}, "metric must be cosine or inner"),
        ({"method": "bounded", "metric": "inner"}, "by cosine only"),
        ({"device": "tpu"}, "got 'tpu'"),
        ({"method": "bounded"}, "no bounded index; build it with"),
        ({"exact": False}, "no approximate index; build one with"),
        ({"method": "hnsw"}, "no hnsw index; build it with"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            split.search(np.ones(64), 1, **options)


def test_sums_have_one_order(random: np.random.Generator) -> None:
    values = random.standard_normal((5, 37))
    whole = ranking.fold(values.copy())
    for row in range(5):
        assert ranking.fold(values[row : row + 1].copy())[0] == whole[row]
    np.testing.assert_allclose(whole, values.sum(1))


def test_an_error_in_a_worker_is_raised() -> None:
    def fail(part: int, worker: int) -> None:
        if part == 3:
            raise InvalidInputError("part 3")

    with pytest.raises(InvalidInputError, match="part 3"):
        spread(fail, 8, 2)


def test_real_activations_agree_with_float64(real_activations: Path) -> None:
    with np.load(real_activations) as data:
        values, queries = data["train"][::5], data["val"][::500]
    expected_scores, expected = reference(values, queries, 10)
    scores, rows = ExactSearch(values).search(queries, 10)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_allclose(scores, expected_scores, rtol=2e-7)


Spread = np.ndarray[Any, Any]


def spread_rows(random: np.random.Generator, rows: int = 3000, dim: int = 64) -> Spread:
    return random.standard_normal((rows, dim)) * np.exp(-np.arange(dim) / 8)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this processor would choose."""
    monkeypatch.setattr(exact, "bfloat_pays", lambda _dim, _count: True)


def found(values: Spread, queries: Spread, k: int, rows: Rows | None = None) -> tuple[Any, Any, ExactSearch]:
    engine = ExactSearch(values)
    return *engine.search(queries, k, rows), engine


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("k", [1, 7, 40])
def test_answers_are_those_of_float32(random: np.random.Generator, dtype: Any, k: int) -> None:
    values, queries = spread_rows(random).astype(dtype), spread_rows(random, 30).astype(np.float32)
    values[100:140] = values[7]  # ties
    some = np.sort(random.choice(3000, 2000, replace=False))
    for rows in (None, some):
        scores, places, engine = found(values, queries, k, rows)
        assert engine._close_from == np.inf
        plain = ExactSearch(values)
        plain._close_from = 0
        expected = plain.search(queries, k, rows)
        np.testing.assert_array_equal(places, expected[1])
        np.testing.assert_array_equal(scores, expected[0])


@pytest.mark.usefixtures("forced")
def test_where_it_tells_nothing_apart_it_is_given_up(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "_MOST_COARSE", 0)
    values = (1 + 1e-3 * random.random((3000, 32))).astype(np.float32)
    queries = (1 + 1e-3 * random.random((9, 32))).astype(np.float32)
    scores, places, engine = found(values, queries, 5)
    assert engine._close_from == 5
    plain = ExactSearch(values)
    plain._close_from = 0
    expected = plain.search(queries, 5)
    np.testing.assert_array_equal(places, expected[1])
    np.testing.assert_array_equal(scores, expected[0])


@pytest.mark.usefixtures("forced")
def test_the_margin_covers_every_score(random: np.random.Generator) -> None:
    values = spread_rows(random, 500).astype(np.float16)
    table, units = RowTable(values), unit(torch.from_numpy(spread_rows(random, 20)))
    queries = BfloatQueries.of(table, units, 5)
    assert queries is not None
    out = torch.empty(500, 20)
    queries.multiply(torch.from_numpy(values), torch.empty(64 * 64), out, 0)
    rows = values.astype(np.float64)
    expected = rows / np.linalg.norm(rows, axis=1)[:, None] @ units.double().numpy().T
    assert np.abs((out * table.scales()).numpy() - expected).max() <= queries.margin


@pytest.mark.usefixtures("forced")
def test_what_it_is_not_used_for(random: np.random.Generator) -> None:
    values = spread_rows(random, 50).astype(np.float32)
    units = unit(torch.from_numpy(values[:8]))
    assert BfloatQueries.of(RowTable(values), units, 1) is not None
    assert BfloatQueries.of(RowTable(values), units[:1], 1) is None  # half.py's
    assert BfloatQueries.of(RowTable(values), units, exact._MOST_NEIGHBOURS + 1) is None
    assert BfloatQueries.of(RowTable(values * np.float32(1e-22)), units, 1) is None


def test_this_processor_is_asked_once() -> None:
    assert isinstance(bfloat_pays(64, 32), bool)
