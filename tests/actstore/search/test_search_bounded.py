"""The bounded search has the answers of the exact one, whatever the data; and says no where its bound does not pay."""

from __future__ import annotations

from collections.abc import Callable
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
from actstore.search import BoundedSearch, ExactSearch, RowTable, bounded, levels
from actstore.search.kept_files import find, folder
from actstore.search.queries import unit
from actstore.search.rotation import choose_widths, fit_directions, rotate, storage_margin

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
    monkeypatch.setattr(levels, "choose_widths", lambda *_: widths)
    return build(rows)


def build(rows: Any) -> BoundedSearch:
    with one_thread():  # too little work for two
        return BoundedSearch.build(rows)


def assert_same(engine: BoundedSearch, queries: Any, k: int) -> None:
    scores, rows = engine.search(queries, k)
    expected_scores, expected = ExactSearch(engine.table).search(queries, k)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(scores, expected_scores)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(700, 1500),
    dim=st.sampled_from([48, 64, 100]),
    widths=st.sampled_from([(16,), (32,), (16, 48), (32, 48)]),
    queries=st.integers(1, 40),
    k=st.integers(1, 5),
    isotropic=st.booleans(),
)
def test_any_widths_give_the_exact_answer(
    seed: int, rows: int, dim: int, widths: tuple[int, ...], queries: int, k: int, isotropic: bool
) -> None:
    random = np.random.default_rng(seed)
    values = clustered(random, rows, dim)
    asked = random.standard_normal((queries, dim)) if isotropic else clustered(random, max(10, queries), dim)[:queries]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded, "_BOUNDS", 1 << 13)  # several spans
        patch.setattr(bounded, "_MOST_LEFT", 2.0)  # never fall back
        engine = with_widths(values, *widths, monkeypatch=patch)
        assert_same(engine, asked.astype(np.float32), k)
        assert engine.fell_back == 0


def test_bounds_are_never_below_the_scores(random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heart of it: what is stored, rounded and multiplied still bounds every score from above."""
    for values in (clustered(random, 900, 64), random.standard_normal((900, 64)).astype(np.float32)):
        values[7] = 0
        engine = with_widths(values, 16, 48, monkeypatch=monkeypatch)
        queries = torch.from_numpy(np.concatenate([values[:20], random.standard_normal((20, 64))]).astype(np.float32))
        queries = queries[(queries != 0).any(1)]
        exact = unit(torch.from_numpy(values)).double() @ unit(queries).double().T
        first, second = bounded._coefficients(engine.levels, unit(queries))
        bounds = engine.levels.first.double() @ first.double()
        margin = storage_margin(len(engine.levels.directions), 64)
        assert (bounds + margin >= exact).all()
        assert (bounds + engine.levels.second.double() @ second.double() + margin >= exact).all()
        assert (bounds < exact + 2.5).all()


def test_rows_near_a_subspace_prune_and_agree(random: np.random.Generator) -> None:
    values = clustered(random, 6000, 256, rank=12, copies=0)
    engine = build(values[:-64])
    assert engine.prunes
    assert engine.nbytes < values.nbytes
    assert_same(engine, values[-64:], 5)
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


def test_large_k_few_rows_and_equal_rows(random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    few = with_widths(clustered(random, 130, 32), 16, monkeypatch=monkeypatch)
    for k in (1, 2, 100, 130):
        assert_same(few, random.standard_normal((3, 32)), k)
    equal = with_widths(np.ones((3000, 32), np.float16), 16, monkeypatch=monkeypatch)
    np.testing.assert_array_equal(equal.search(np.ones(32), 4)[1], [[0, 1, 2, 3]])
    with pytest.raises(InvalidInputError, match="only 3,000 rows"):
        equal.search(np.ones(32), 3001)


def test_an_index_is_kept_beside_the_store(
    make_store: Callable[..., Any], random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "choose_widths", lambda *_: (16, 48))
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


def test_an_index_of_other_rows_is_refused(make_store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "choose_widths", lambda *_: (16,))
    store = make_store(rows=1500)
    BoundedSearch.build(store["train"])
    with store.writer("train") as writer:
        writer.append(store.values[:10], np.zeros(10, np.int64), [f"new/{row}" for row in range(10)])
    split = store["train"]
    with pytest.raises(InvalidInputError, match=r"built for other rows .* --kind bounded"):
        split.search(store.values[0], 1, method="bounded")
    assert split.search(store.values[0], 2)[1].tolist() == [[0, 1500]]  # auto: all products
    BoundedSearch.build(split)
    assert split.search(store.values[0], 2, method="bounded")[1].tolist() == [[0, 1500]]
    assert len(list(folder(split).glob("bounded.*.safetensors"))) == 1  # the old one is gone


def test_damage_is_named(make_store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "choose_widths", lambda *_: (16,))
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


def test_widths_follow_what_they_leave() -> None:
    assert choose_widths({16: 1.0, 64: 1.0}, 10**6, 512) == ()
    assert choose_widths({}, 10, 512) == ()
    assert choose_widths({16: 0.5, 64: 1e-4, 128: 0.9e-4}, 10**6, 512) == (64,)
    assert choose_widths({256: 0.05, 512: 0.004, 768: 0.0005}, 10**6, 2048) == (512, 768)


def test_real_activations_prune_and_agree(real_activations: Path) -> None:
    with np.load(real_activations) as data:
        values, queries = data["train"], data["val"][::400]
    engine = build(values)
    assert engine.prunes
    assert_same(engine, queries, 5)
    assert engine.fell_back == 0
