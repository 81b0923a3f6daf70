"""Batches narrowed down in bfloat16: the same answer, and given up where cosines lie too close together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from actstore.search import ExactSearch, RowTable, bfloat, exact
from actstore.search.bfloat import BfloatQueries, bfloat_pays
from actstore.search.queries import unit
from actstore.search.selection import Rows

pytestmark = pytest.mark.numeric

Spread = np.ndarray[Any, Any]


def spread_rows(random: np.random.Generator, rows: int = 3000, dim: int = 64) -> Spread:
    return random.standard_normal((rows, dim)) * np.exp(-np.arange(dim) / 8)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this processor would choose."""
    monkeypatch.setattr(bfloat, "bfloat_pays", lambda _dim, _count: True)


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
    assert BfloatQueries.of(RowTable(values), units, bfloat.MOST_NEIGHBOURS + 1) is None
    assert BfloatQueries.of(RowTable(values * np.float32(1e-22)), units, 1) is None


def test_this_processor_is_asked_once() -> None:
    assert isinstance(bfloat_pays(64, 32), bool)
