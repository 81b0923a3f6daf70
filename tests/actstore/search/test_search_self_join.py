"""The neighbours of all rows at once are those of plain float64 arithmetic, whatever the data, the order of the rows
and the processor; an interrupted search goes on to the same answers; and where codes do not pay, it says no."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from actstore.compute.tensors import one_thread
from actstore.search import Joined, compiled, join_codes, join_rows, self_join
from actstore.search.compiled import SWITCH
from actstore.search.join_codes import Costs

pytestmark = pytest.mark.numeric
NONE = pytest.mark.skipif(compiled.kernels() is None, reason="no compiled loops here, or none are to be used")


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few the rows are: blocks and cells of few, and codes that always pay."""
    monkeypatch.setattr(self_join, "BLOCK_ROWS", 96)
    monkeypatch.setattr(self_join, "_RANGE_ROWS", 50)
    monkeypatch.setattr(self_join, "_NEAR_CELLS", 2)
    monkeypatch.setattr(join_codes, "_CELL_ROWS", 30)
    monkeypatch.setattr(Costs, "most", lambda self, dim: np.inf)


@pytest.fixture(params=compiled.able_processors())
def processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv(SWITCH, request.param)
    compiled.kernels.cache_clear()
    yield request.param
    monkeypatch.undo()
    compiled.kernels.cache_clear()


def whole_rows(random: np.random.Generator, rows: int, dim: int, copies: float) -> NDArray[np.int64]:
    """Rows of small whole numbers, whose products and squares are exact in float64, around a few centres; with copies,
    multiples and rows of zeros among them."""
    values = random.integers(0, 9, (5, dim))[random.integers(0, 5, rows)] + random.integers(0, 6, (rows, dim))
    values[random.integers(0, rows, int(copies * rows))] = values[0]
    values[random.integers(0, rows, 3)] = 2 * values[1]
    values[random.integers(0, rows, 2)] = 0
    return values


def plain(values: NDArray[np.int64], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Of rows that are not zero: all cosines in float64, and equal ones by number."""
    wide = values.astype(np.float64)
    lengths = np.sqrt((wide**2).sum(1))
    there = np.flatnonzero(lengths)
    cosines = (wide @ wide[there].T / np.maximum(lengths[:, None] * lengths[there], 1e-9)).astype(np.float32)
    cosines[there, np.arange(len(there))] = -9
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(cosines, order, 1)[there], there[order][there]


def assert_nearest(found: Joined | None, values: NDArray[np.int64], k: int) -> None:
    assert found is not None
    assert found.done == len(found.order)
    scores, rows = plain(values, k)
    there = np.flatnonzero(values.any(1))
    np.testing.assert_array_equal(np.sort(found.order), there)
    back = np.argsort(found.order)
    np.testing.assert_array_equal(found.scores[back], scores)
    np.testing.assert_array_equal(found.rows[back], rows)


def join(values: Any, k: int, **given: Any) -> Joined | None:
    parts = [torch.from_numpy(part) for part in (values if isinstance(values, list) else [values])]
    is_there = torch.cat([part.any(1) for part in parts]).numpy()
    with one_thread():  # too little work for two
        return join_rows(parts, np.flatnonzero(is_there), k, **given)


@NONE
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.sampled_from([70, 200, 500]),
    dim=st.sampled_from([129, 200, 330]),
    k=st.sampled_from([1, 4, 15]),
    copies=st.sampled_from([0.0, 0.3, 0.95]),
    kind=st.sampled_from([np.float16, np.float32]),
)
def test_it_finds_the_nearest_of_every_row(
    seed: int, rows: int, dim: int, k: int, copies: float, kind: type[Any]
) -> None:
    values = whole_rows(np.random.default_rng(seed), rows, dim, copies)
    assert_nearest(join(values.astype(kind), k), values, k)


def test_every_processor_gives_the_same(processor: str, random: np.random.Generator) -> None:
    values = whole_rows(random, 700, 260, 0.1)
    assert_nearest(join(values.astype(np.float16), 7), values, 7)


@NONE
@pytest.mark.parametrize("widths", [(64, 64), (16, 16, 32, 8), (128, 1)])
def test_whatever_the_stages_are(
    widths: tuple[int, ...], random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_join, "choose_stages", lambda *_: widths)
    values = whole_rows(random, 400, 150, 0.1)
    assert_nearest(join(values.astype(np.float32), 5), values, 5)


@NONE
def test_more_neighbours_than_a_table_has_rows(random: np.random.Generator) -> None:
    values = whole_rows(random, 300, 140, 0.1)
    parts = [part.copy() for part in np.split(values.astype(np.float16), 30)]
    assert_nearest(join(parts, 15), values, 15)


@NONE
def test_rows_of_several_tables_are_numbered_through(random: np.random.Generator) -> None:
    values = whole_rows(random, 500, 140, 0.1)
    half = values.astype(np.float16)
    assert_nearest(join([half[:20].copy(), half[20:320].copy(), half[320:].copy()], 6), values, 6)


@NONE
def test_several_threads_find_the_same(random: np.random.Generator) -> None:
    values = whole_rows(random, 900, 140, 0.2)
    half = torch.from_numpy(values.astype(np.float16))
    assert_nearest(join_rows([half], np.flatnonzero(values.any(1)), 6), values, 6)


@NONE
def test_rows_that_are_hard_to_code_are_found(random: np.random.Generator) -> None:
    """One long coordinate, beyond the largest code, and lengths that differ by far."""
    values = whole_rows(random, 300, 140, 0.0)
    values[::50, 7] += 500
    values[::7] *= 40
    assert_nearest(join(values.astype(np.float32), 6), values, 6)


@NONE
def test_interrupted_it_goes_on(random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_join, "_BETWEEN_SAVES", (0.0, 0.0))
    values = whole_rows(random, 600, 140, 0.1)
    kept: list[Joined] = []

    def stop(known: Joined) -> None:
        kept.append(Joined(known.order.copy(), known.scores.copy(), known.rows.copy(), known.done))
        if len(kept) % 3 == 0:
            raise KeyboardInterrupt

    told: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        join(values.astype(np.float16), 6, save=stop)
    with pytest.raises(KeyboardInterrupt):
        join(values.astype(np.float16), 6, known=kept[-1], save=stop)
    assert 0 < kept[2].done < kept[3].done
    assert_nearest(join(values.astype(np.float16), 6, known=kept[-1], progress=told.append), values, 6)
    assert sum(told) == len(kept[0].order)
    assert told[0] > 0


@NONE
def test_it_says_no_where_codes_do_not_pay(random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    equal = random.standard_normal((300, 140)).astype(np.float32)
    ordered = whole_rows(random, 300, 140, 0.1).astype(np.float32)
    assert join(1e20 * ordered, 5) is None
    assert join_rows([torch.from_numpy(ordered), torch.from_numpy(ordered).half()], np.arange(600), 5) is None
    assert join(ordered[:20], 5) is None
    monkeypatch.undo()
    assert join(equal, 5) is None


@NONE
def test_it_gives_up_where_too_many_pairs_are_left(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = whole_rows(random, 2000, 140, 0.99).astype(np.float16)
    monkeypatch.setattr(self_join, "choose_stages", lambda *_: (64, 64))
    monkeypatch.setattr(Costs, "most", lambda self, dim: 1e-3)
    told: list[int] = []
    assert join(values, 5, progress=told.append) is None
    assert sum(told) == 0


def test_without_compiled_loops_it_says_no(random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_join, "kernels", lambda: None)
    assert join(whole_rows(random, 300, 140, 0.0).astype(np.float16), 5) is None
