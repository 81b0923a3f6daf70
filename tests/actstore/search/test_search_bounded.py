"""The bounded search has the answers of the exact one, whatever the data; and says no where its bound does not pay."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import actstore
from actstore.compute.tensors import one_thread
from actstore.errors import DamagedError, InvalidInputError
from actstore.search import (
    BoundedSearch,
    ExactSearch,
    RowTable,
    bounded,
    bounds,
    compiled,
    plan,
    ranking,
    shorter,
)
from actstore.search.bounds import CompiledBounds, TorchBounds
from actstore.search.compiled import multiply_codes
from actstore.search.index_files import find, folder
from actstore.search.levels import Levels, QueryCodes, fit_directions, principal, rotate, skewness, turned
from actstore.search.plan import Costs, choose_widths
from actstore.search.ranking import LEAST
from actstore.search.table import unit

pytestmark = pytest.mark.numeric


def clustered(
    random: np.random.Generator, rows: int, dim: int, rank: int = 6, copies: float = 0.1
) -> NDArray[np.float16]:
    """Rows near a subspace of a few dimensions, as activations are, with duplicates among them."""
    values = random.standard_normal((rows, rank)) @ random.standard_normal((rank, dim))
    values += 0.05 * random.standard_normal((rows, dim))
    values[random.integers(0, rows, int(copies * rows))] = values[0]
    return values.astype(np.float16)


def with_widths(rows: Any, *widths: int, monkeypatch: pytest.MonkeyPatch) -> BoundedSearch:
    monkeypatch.setattr(plan, "choose_widths", lambda *_: widths)
    return build(rows)


def build(rows: Any) -> BoundedSearch:
    with one_thread():  # too little work for two
        return BoundedSearch.build(rows)


def go(way: str, patch: pytest.MonkeyPatch) -> None:
    """By compiled loops where they are, by torch's products of integers or of floats."""
    if way != "compiled":
        for module in (bounds, ranking, plan):
            patch.setattr(module, "kernels", lambda: None)
    if way == "floats":
        patch.setattr(bounds, "integers_pay", lambda _: False)


def assert_same(engine: BoundedSearch, queries: Any, k: int) -> None:
    scores, rows = engine.search(queries, k)
    expected_scores, expected = ExactSearch(engine.table).search(queries, k)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(scores, expected_scores)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1100, 1900),
    dim=st.sampled_from([48, 100, 160]),
    widths=st.sampled_from([(16,), (32,), (16, 16), (32, 8)]),
    queries=st.integers(1, 40),
    k=st.integers(1, 5),
    isotropic=st.booleans(),
    way=st.sampled_from(["compiled", "integers", "floats"]),
    in_parts=st.booleans(),
)
def test_any_widths_give_the_exact_answer(
    seed: int, rows: int, dim: int, widths: tuple[int, ...], queries: int, k: int, isotropic: bool,
    way: str, in_parts: bool,
) -> None:  # fmt: skip
    random = np.random.default_rng(seed)
    values = clustered(random, rows, dim)
    asked = random.standard_normal((queries, dim)) if isotropic else clustered(random, max(10, queries), dim)[:queries]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded, "_MOST_LEFT", 2.0)  # never fall back
        patch.setattr(bounded, "_PRODUCTS_TO_SHARE", 0)
        if in_parts:
            patch.setattr(bounded, "_RANGE_ROWS", (64, 100))
        go(way, patch)
        engine = with_widths(values, *widths, monkeypatch=patch)
        assert_same(engine, asked.astype(np.float32), k)
        assert engine.fell_back == 0


def test_bounds_are_never_below_the_scores(random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heart of it: what is coded, rounded and multiplied still bounds every score from above."""
    for dim, widths in ((64, (16, 32)), (400, (192, 200))):
        isotropic = random.standard_normal((900, dim)).astype(np.float32)
        lone = np.zeros((900, dim), np.float32)  # each along one axis: the worst case of one scale for all coordinates
        lone[np.arange(900), np.arange(900) % dim] = random.random(900) + 0.1
        for values in (clustered(random, 900, dim), isotropic, lone):
            values[7] = 0
            levels = with_widths(values, *widths, monkeypatch=monkeypatch).levels
            drawn = np.concatenate([values[:20], random.standard_normal((20, dim))]).astype(np.float32)
            check_bounds(levels, values, unit(torch.from_numpy(drawn[(drawn != 0).any(1)])))


def check_bounds(levels: Levels, values: NDArray[Any], units: torch.Tensor) -> None:
    exact = (unit(torch.from_numpy(values)).double() @ units.double().T).numpy()
    everything = np.full(len(units), LEAST)
    for kind in {TorchBounds, CompiledBounds if compiled.kernels() else TorchBounds}:
        for count in (len(units), 1, 3, 33):  # compiled loops take few and many queries differently
            made = kind(levels, QueryCodes(units[:count], levels))
            found = made.reaching(np.array([[0, 500], [500, 900]]), everything[:count], 2, 1, np.inf)
            assert found is not None
            pairs, likely = found
            assert len(pairs) == 900 * len(units[:count])
            assert len(likely) == 2 * len(units[:count])
            scores = exact[pairs.rows, pairs.queries]
            assert (pairs.scores >= scores).all()
            assert (pairs.scores <= scores + 2.5).all()
            again = made.within(pairs, everything, 2, again=True)
            assert len(again) == len(pairs)
            assert (again.scores >= exact[again.rows, again.queries]).all()
            assert again.scores.mean() < pairs.scores.mean() + 0.01
            limits = np.full(count, 0.5, np.float32)
            for second in (False, True):
                left = made.within(pairs, limits, 2, again=second)
                assert (left.scores >= 0.5).all()
                assert len(left) >= (scores >= 0.5).sum()


def test_products_of_codes_are_whole_numbers() -> None:
    random = np.random.default_rng(0)
    for width, count in ((16, 1), (64, 3), (1024, 32)):
        rows = random.integers(1, 256, (70, width), dtype=np.uint8)
        rows[0] = 255
        queries = random.integers(-127, 128, (width, count), dtype=np.int8)
        queries[:, 0] = 127
        expected = (rows.astype(int) - compiled.OFFSET) @ queries.astype(int)
        for exactly in {False, compiled.integers_pay(width)}:
            found = torch.empty(70, count)
            multiply_codes(torch.from_numpy(rows), torch.from_numpy(queries), found, exactly)
            excess = compiled.OFFSET * exactly * queries.sum(0, dtype=int)
            # with the offset, sums may be above 2**24 and are rounded once as they become float32
            assert np.abs(found.numpy().astype(int) - excess - expected).max() <= (2 if exactly else 0)


def test_a_product_that_saturates_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturating(rows: torch.Tensor, queries: torch.Tensor, out: Any = None) -> torch.Tensor:
        return (rows.int() @ queries.int()).clamp(-(2**15), 2**15 - 1)

    monkeypatch.setattr(torch, "_int_mm", saturating)
    compiled.integers_pay.cache_clear()
    assert not compiled.integers_pay(64)
    monkeypatch.delattr(torch, "_int_mm")
    compiled.integers_pay.cache_clear()
    assert not compiled.integers_pay(64)
    compiled.integers_pay.cache_clear()


def test_rows_near_a_subspace_prune_and_agree(random: np.random.Generator) -> None:
    values = clustered(random, 6000, 256, rank=12, copies=0)
    engine = build(values[:-64])
    assert engine.prunes
    assert engine.nbytes < values.nbytes
    assert_same(engine, values[-64:], 5)
    assert_same(engine, values[-1:], 10)
    assert engine.fell_back == 0


def test_isotropic_rows_are_searched_by_all_products(random: np.random.Generator) -> None:
    engine = build(random.standard_normal((4000, 128)).astype(np.float16))
    assert not engine.prunes
    assert engine.nbytes == 0
    assert_same(engine, random.standard_normal((5, 128)), 3)


def test_bounds_that_leave_too_many_fall_back(random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = with_widths(random.standard_normal((6000, 64)).astype(np.float16), 16, monkeypatch=monkeypatch)
    assert_same(engine, random.standard_normal((33, 64)), 3)
    assert engine.fell_back == 33


@pytest.mark.skipif(compiled.kernels() is None, reason="torch is given tensors, not addresses")
def test_codes_are_kept_as_long_as_loops_have_their_address(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = with_widths(clustered(random, 1200, 48), 16, 16, monkeypatch=monkeypatch)
    queries = QueryCodes(unit(torch.from_numpy(clustered(random, 12, 48).astype(np.float32))), engine.levels)
    made, codes = CompiledBounds(engine.levels, queries), weakref.ref(queries.lanes)
    del queries.lanes  # as a thread does that asks for them at the same time, and puts its own there
    assert codes() is not None
    assert made.queries is queries


@pytest.mark.skipif(compiled.kernels() is None, reason="torch makes room for all pairs")
@pytest.mark.parametrize(("count", "fallen"), [(1, 0), (33, 33)])
def test_little_room_for_pairs_is_enough_or_falls_back(
    random: np.random.Generator, count: int, fallen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = clustered(random, 20_000, 64, copies=0)
    engine = with_widths(values, 16, monkeypatch=monkeypatch)
    monkeypatch.setattr(bounds, "_ROOM", (0, 0))
    assert_same(engine, values[:count].astype(np.float32), 60)
    assert engine.fell_back == fallen


def test_a_batch_that_bounds_do_not_help_spares_the_next_ones(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = with_widths(random.standard_normal((6000, 64)).astype(np.float16), 16, monkeypatch=monkeypatch)
    monkeypatch.setattr(bounded, "_QUERIES", 8)
    runs, run = [], bounded.QueryBatch.run
    monkeypatch.setattr(bounded.QueryBatch, "run", lambda batch: runs.append(1) or run(batch))  # type: ignore[func-returns-value]
    assert_same(engine, random.standard_normal((33, 64)), 3)
    assert (len(runs), engine.fell_back) == (1, 33)


def test_queries_are_rotated_once_for_several_parts_of_the_rows(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = clustered(random, 6000, 64)
    engine, queries = with_widths(values, 16, monkeypatch=monkeypatch), random.standard_normal((9, 64))
    first = engine.search(queries, 3)
    monkeypatch.setattr(bounded, "QueryCodes", None)  # cannot be made again
    for one, other in zip(engine.search(queries, 3), first, strict=True):
        np.testing.assert_array_equal(one, other)
    engine.search(queries, 3, np.arange(0, 6000, 5))


@pytest.fixture
def short_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made for few and narrow rows too."""
    monkeypatch.setattr(shorter, "_LEAST_BYTES", 0)
    monkeypatch.setattr(shorter, "_LEAST_WIDTH", 0)


needs_kernels = pytest.mark.skipif(compiled.kernels() is None, reason="compiled loops alone use short codes")


@needs_kernels
@pytest.mark.usefixtures("short_codes")
@pytest.mark.parametrize("widths", [(16,), (32, 16), (160, 32)])
def test_short_codes_give_the_exact_answer(
    widths: tuple[int, ...], random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = clustered(random, 20_000, 200, rank=40, copies=0.01)
    values[9] = 0
    engine = with_widths(values, *widths, monkeypatch=monkeypatch)
    queries = np.concatenate([values[10:40], random.standard_normal((10, 200))]).astype(np.float32)
    assert_same(engine, queries[:1], 3)
    assert engine.shorter.codes is None  # they are made by the second search for a few queries
    for count in (1, 2, 4):
        for start in range(0, 40, count):
            assert_same(engine, queries[start : start + count], 3)
    for some in (np.arange(0, 20_000, 5), np.arange(0, 20_000, 2)):  # gathered, and masked
        found, expected = engine.search(queries[:2], 3, some), engine.exact.search(queries[:2], 3, some)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@needs_kernels
@pytest.mark.usefixtures("short_codes")
def test_short_codes_stay_where_they_leave_few_rows(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = clustered(random, 6000, 64, copies=0)
    for values, stay in ((near, True), (random.standard_normal((6000, 64)).astype(np.float16), False)):
        monkeypatch.setattr(bounded, "_MOST_EXAMINED", 2.0)  # never fall back
        engine = with_widths(values, 32, monkeypatch=monkeypatch)
        for query in random.standard_normal((20, 64)) if not stay else near[:20].astype(np.float32):
            assert_same(engine, query[None], 2)
        assert (engine.shorter.codes is not None) == stay


def test_large_k_few_rows_and_equal_rows(random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    few = with_widths(clustered(random, 130, 32), 16, monkeypatch=monkeypatch)
    for k in (1, 2, 100, 130):
        assert_same(few, random.standard_normal((3, 32)), k)
    equal = with_widths(np.ones((3000, 32), np.float16), 8, 8, monkeypatch=monkeypatch)
    np.testing.assert_array_equal(equal.search(np.ones(32), 4)[1], [[0, 1, 2, 3]])
    with pytest.raises(InvalidInputError, match="only 3,000 rows"):
        equal.search(np.ones(32), 3001)


def test_an_index_is_kept_beside_the_store(
    make_store: Callable[..., Any], random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "choose_widths", lambda *_: (16, 32))
    store = make_store(rows=2000)
    queries = random.random((5, 64), dtype=np.float32)
    expected = store["train"].search(queries, 4, method="exact")
    done: list[int] = []
    BoundedSearch.build(store["train"], done.append)
    assert sum(done) == 2000
    for method in ("bounded", "auto"):
        split = actstore.open(store.path)["train"]
        scores, rows = split.search(queries, 4, method=method)
        np.testing.assert_array_equal(rows, expected[1])
        np.testing.assert_array_equal(scores, expected[0])
        assert isinstance(split.__dict__["_engines"][method, "cosine", "cpu"], BoundedSearch)
    assert sorted(actstore.open(store.path).splits) == ["train"]  # it is no part of the store


def test_damage_is_named(make_store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "choose_widths", lambda *_: (16,))
    split = make_store(rows=1500)["train"]
    BoundedSearch.build(split)
    found = find(split, "bounded")
    assert found is not None
    data = found[0].read_bytes()
    for content, message in ((data[:-5], "truncated"), (b"\xff" * len(data), "damaged")):
        found[0].write_bytes(content)
        with pytest.raises(DamagedError, match=message):
            split.search(np.ones(64), 1, method="bounded")
    found[0].unlink()
    with pytest.raises(DamagedError, match="gone"):
        split.search(np.ones(64), 1, method="bounded")
    (folder(split) / "bounded.json").write_text("{}")
    with pytest.raises(DamagedError, match="damaged"):
        split.search(np.ones(64), 1, method="bounded")


def test_directions_are_orthonormal_and_ordered(random: np.random.Generator) -> None:
    values = clustered(random, 2000, 48)
    directions = fit_directions(RowTable(values))
    np.testing.assert_allclose(directions @ directions.T, np.eye(48), atol=1e-5)
    shares = rotate(unit(torch.from_numpy(values)), directions).square().mean(0)
    assert (shares[:6] > shares[6:].max()).all()


def test_turned_directions_span_what_they_did(random: np.random.Generator) -> None:
    directions = principal(unit(torch.from_numpy(clustered(random, 2000, 48))))
    basis = turned(directions, (16, 24))
    assert basis.shape == (41, 48)
    assert skewness(basis) < 1e-5
    np.testing.assert_allclose(basis[0], directions[0], atol=1e-6)
    for part, old in ((basis[1:17], directions[1:17]), (basis[17:41], directions[17:41])):
        np.testing.assert_allclose(part.T @ part, old.T @ old, atol=1e-5)


COSTS = Costs(byte=0.1e-9, product=0.6e-9, coordinate=8e-12, exact=60e-9, pair=80e-9, pair_byte=0.2e-9, pair_full=2e-6)


def test_widths_follow_what_they_leave() -> None:
    assert choose_widths({16: 1.0, 64: 1.0}, 10**6, 2048, COSTS) == ()
    assert choose_widths({}, 10, 2048, COSTS) == ()
    assert choose_widths({16: 0.5, 64: 1e-6, 128: 0.9e-6}, 10**6, 2048, COSTS) == (64,)
    assert choose_widths({256: 0.2, 512: 0.02, 704: 0.004, 1280: 0.0002}, 10**6, 2048, COSTS) == (704, 576)
    even = replace(COSTS, byte=1e-9)  # memory that is slow: fewer bytes, for a single query's sake
    assert choose_widths({256: 0.2, 512: 0.005, 704: 0.004, 1280: 0.0002}, 10**6, 2048, even) == (512, 768)
    slow = Costs(
        byte=0.1e-9, product=1e-9, coordinate=100e-12, exact=60e-9, pair=80e-9, pair_byte=0.2e-9, pair_full=2e-6
    )
    assert choose_widths({512: 0.02, 704: 0.004}, 10**6, 2048, slow) == ()  # codes do not pay on such a machine


def test_real_activations_prune_and_agree(real_activations: Path) -> None:
    with np.load(real_activations) as data:
        values, queries = data["train"], data["val"][::400]
    engine = build(values)
    assert engine.prunes
    assert_same(engine, queries, 5)
    assert engine.fell_back == 0
