"""The nearest row of every class against a plain loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import actstore
from actstore.errors import InvalidInputError
from actstore.layout.class_index import ClassIndex
from actstore.search import by_class
from actstore.search.by_class import ClassRows, best_by_class

pytestmark = pytest.mark.numeric


def plain(rows: NDArray[np.float64], chosen: ClassRows, queries: NDArray[np.float64]) -> NDArray[np.float64]:
    """One class after the other, in float64."""

    def unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)

    best = np.empty((len(queries), len(chosen)))
    for label in range(len(chosen)):
        some = rows[chosen.rows[chosen.offsets[label] : chosen.offsets[label + 1]]]
        best[:, label] = (unit(queries) @ unit(some).T).max(axis=1)
    return best


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    queries=st.integers(1, 7),
    block=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_it_equals_a_loop_over_classes_whatever_the_blocks(
    counts: list[int], queries: int, block: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(len(counts)), counts))
    rows = random.standard_normal((len(labels), 5)).astype(np.float32)
    wanted = random.standard_normal((queries, 5)).astype(np.float32)
    index = ClassIndex([str(label) for label in range(len(counts))], labels)
    chosen = ClassRows.of(index, random.permutation(len(counts)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_class, "ROWS_PER_BLOCK", block)
        patch.setattr(by_class, "QUERIES_PER_BLOCK", 3)
        found = best_by_class(torch.from_numpy(rows), chosen, torch.from_numpy(wanted))
    np.testing.assert_allclose(found.numpy(), plain(rows.astype(float), chosen, wanted.astype(float)), atol=1e-5)


def test_a_split_gives_what_its_rows_give(make_store: Callable[..., actstore.ActivationStore]) -> None:
    train = make_store(rows=500)["train"]
    chosen = ClassRows.of(train.class_index, [5, 0, 2])
    queries = train.to_torch([3, 400, 77], dtype=torch.float32)
    found = best_by_class(train, chosen, queries)
    assert torch.equal(found, best_by_class(train.to_torch(), chosen, queries))
    own = [place for place, label in enumerate((5, 0, 2)) if label in train.labels[[3, 400, 77]]]
    assert found[:, own].max() == pytest.approx(1, abs=1e-5)  # a query's own row


def test_rows_are_compared_embedded(make_store: Callable[..., actstore.ActivationStore]) -> None:
    train = make_store(rows=200)["train"]
    chosen = ClassRows.of(train.class_index, range(7))
    matrix = torch.randn(64, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    queries = torch.randn(4, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = best_by_class(train, chosen, queries, lambda rows: rows @ matrix)
    expected = best_by_class(train.to_torch(dtype=torch.float64) @ matrix, chosen, queries)
    torch.testing.assert_close(found, expected)


def test_zero_vectors_are_like_nothing() -> None:
    chosen = ClassRows(np.arange(3), np.array([0, 2, 3]))
    rows = torch.tensor([[0.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    found = best_by_class(rows, chosen, torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    assert found.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_bad_input_is_named() -> None:
    chosen, rows = ClassRows(np.arange(3), np.array([0, 2, 3])), torch.ones(3, 2)
    with pytest.raises(InvalidInputError, match="query 1 holds a NaN or an infinity"):
        best_by_class(rows, chosen, torch.tensor([[1.0, 0.0], [torch.nan, 0.0]]))
    with pytest.raises(InvalidInputError, match="queries must have dim 2 as the rows have, got 3"):
        best_by_class(rows, chosen, torch.ones(1, 3))
    with pytest.raises(InvalidInputError, match=r"queries must be \(n, dim\)"):
        best_by_class(rows, chosen, torch.ones(2))
    with pytest.raises(InvalidInputError, match="class 'b' has no rows to search"):
        ClassRows.of(ClassIndex(["a", "b"], np.array([0, 0])), [0, 1])
    with pytest.raises(InvalidInputError, match="no classes to search"):
        ClassRows.of(ClassIndex(["a", "b"], np.array([0, 0])), [])
