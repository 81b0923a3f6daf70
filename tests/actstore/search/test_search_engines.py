"""Leading classes by the k nearest rows: what decides ranks is as if every class had been looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import actstore
from actstore.errors import InvalidInputError
from actstore.search import BoundedSearch, engines
from actstore.search.by_class import ClassRows
from actstore.search.engines import LeadingClasses, SearchChoice, wanted_classes
from tests import simulated_faiss

pytestmark = pytest.mark.numeric

CLASSES, DIM = 9, 12
Make = Callable[..., actstore.Split]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(values: NDArray[Any], labels: NDArray[Any]) -> actstore.Split:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.zarr"
        names = [f"c{label}" for label in range(CLASSES)]
        return actstore.from_arrays(path, {"train": (values, labels)}, classes=names, chunk_rows=64)["train"]

    return make


def tied(seed: int, rows: int = 400) -> tuple[NDArray[np.float16], NDArray[np.int64]]:
    """Few distinct rows of small integers, whose duplicates lie in many classes, and rows of zeros."""
    random = np.random.default_rng(seed)
    distinct = random.integers(-1, 3, (25, DIM))
    distinct[0] = 0
    return distinct[random.integers(0, 25, rows)].astype(np.float16), random.permutation(np.arange(rows) % CLASSES)


def clustered(seed: int, rows: int = 3000) -> tuple[NDArray[np.float16], NDArray[np.int64]]:
    """The nearest hundreds of a query are of its own class."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(rows) % CLASSES)
    centres = 3 * random.standard_normal((CLASSES, DIM))
    return (centres[labels] + 0.3 * random.standard_normal((rows, DIM))).astype(np.float16), labels


def every_class(split: actstore.Split, chosen: ClassRows, queries: NDArray[Any]) -> NDArray[np.float32]:
    """(n, n_class) in float64, rounded to float32."""
    rows, asked = split.take(chosen.rows).astype(np.float64), queries.astype(np.float64)
    lengths = np.linalg.norm(asked, axis=1)[:, None] * np.linalg.norm(rows, axis=1)
    cosines = np.divide(asked @ rows.T, lengths, out=np.zeros_like(lengths), where=lengths > 0).astype(np.float32)
    return np.maximum.reduceat(cosines, chosen.offsets[:-1], axis=1)


def ranks(scores: NDArray[np.float32], wanted: NDArray[Any]) -> NDArray[np.int64]:
    own = scores[np.arange(len(scores)), wanted][:, None]
    earlier = np.arange(scores.shape[1])[None] < wanted[:, None]
    before: NDArray[np.int64] = ((scores > own) | ((scores == own) & earlier)).sum(1)
    return before


@pytest.mark.parametrize("method", ["auto", "exact", "bounded", "faiss"])
@pytest.mark.parametrize("data", [tied, clustered])
def test_ranks_and_highest_scores_are_those_of_all_classes(make: Make, method: str, data: Any) -> None:
    values, labels = data(1)
    split = make(values, labels)
    if method == "bounded":
        BoundedSearch.build(split)
    chosen = ClassRows.of(split.class_index, [7, 0, 3, 8, 5, 1, 2])  # two classes are of no concern
    random = np.random.default_rng(2)
    queries = values[random.integers(0, len(values), 60)].astype(np.float32)
    queries[40:] += random.random((20, DIM), dtype=np.float32)
    queries[0] = 0
    expected = every_class(split, chosen, queries)
    wanted = random.integers(0, 7, 30)
    aims = wanted_classes(torch.from_numpy(wanted), 60)
    found = LeadingClasses(split, chosen, SearchChoice(method)).scores(torch.from_numpy(queries), aims, 5).numpy()
    known = found > -np.inf
    np.testing.assert_allclose(found[known], expected[known], atol=1e-7)
    before, after = (np.minimum(ranks(scores[:30], wanted), 5) for scores in (expected, found))
    np.testing.assert_array_equal(after, before)
    best = [-np.sort(-scores[30:], axis=1)[:, :5] for scores in (expected, found)]
    np.testing.assert_allclose(best[1], best[0], atol=1e-7)
    np.testing.assert_allclose(found.max(1), expected.max(1), atol=1e-7)
    seen = np.take_along_axis(found[:30], wanted[:, None], 1)[:, 0]
    np.testing.assert_allclose(seen[before < 5], expected[np.arange(30), wanted][before < 5], atol=1e-7)


def test_a_query_that_finds_its_class_at_once_asks_for_no_more(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    values, labels = clustered(3)
    split = make(values, labels)
    asked: list[tuple[int, int]] = []
    search = engines.search

    def counting(part: Any, vectors: Any, k: int, **more: Any) -> Any:
        asked.append((len(vectors), k))
        return search(part, vectors, k, **more)

    monkeypatch.setattr(engines, "search", counting)
    chosen = ClassRows.of(split.class_index, range(CLASSES))
    queries, wanted = torch.from_numpy(values[:20].astype(np.float32)), torch.from_numpy(labels[:20])
    LeadingClasses(split, chosen).scores(queries, wanted)
    assert asked == [(20, 8)]
    asked.clear()
    LeadingClasses(split, chosen).scores(queries)
    assert [k for _, k in asked[:3]] == [8, 32, 128]


def test_where_the_nearest_rows_are_of_one_class_all_are_multiplied(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, labels = clustered(4)
    split = make(values, labels)
    monkeypatch.setattr(engines, "_MOST", 8)
    chosen = ClassRows.of(split.class_index, range(CLASSES))
    queries = values[:30].astype(np.float32)
    found = LeadingClasses(split, chosen).scores(torch.from_numpy(queries)).numpy()
    expected = -np.sort(-every_class(split, chosen, queries), axis=1)[:, :5]
    np.testing.assert_allclose(-np.sort(-found, axis=1)[:, :5], expected, atol=1e-7)
    assert (found > -np.inf).sum(1).max() < CLASSES  # what no rank depends on is left out


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> simulated_faiss.Card:
    """torch says that there are two of CUDA, whose memory it does not know; what faiss does there is simulated."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: simulated_faiss.CARDS)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    return simulated_faiss.install(monkeypatch)


@pytest.mark.parametrize(
    ("choice", "place"),
    [(("auto", "auto"), 0), (("faiss", "auto"), 0), (("exact", "cuda:1"), 1), (("bounded", "auto"), None)],
)
def test_a_card_searches_the_chosen_rows_alone(
    make: Make, cards: simulated_faiss.Card, choice: tuple[str, str], place: int | None
) -> None:
    values, labels = clustered(6)
    split = make(values, labels)
    BoundedSearch.build(split)
    chosen = ClassRows.of(split.class_index, [7, 0, 3])
    queries, wanted = torch.from_numpy(values[:20].astype(np.float32)), torch.from_numpy(labels[:20] % 3)
    found = LeadingClasses(split, chosen, SearchChoice(*choice)).scores(queries, wanted, 2)
    expected = LeadingClasses(split, chosen).scores(queries, wanted, 2)
    both = (found > -torch.inf) & (expected > -torch.inf)
    assert torch.equal(found[both], expected[both])
    assert torch.equal(found.max(1).values, expected.max(1).values)
    assert cards.held == ([] if place is None else [(place, len(chosen.rows))])


def test_where_only_torch_finds_a_card_auto_is_the_cpu(
    make: Make, cards: simulated_faiss.Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, labels = clustered(7, 90)
    split = make(values, labels)
    chosen, queries = ClassRows.of(split.class_index, [0, 1]), torch.from_numpy(values[:3].astype(np.float32))
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    LeadingClasses(split, chosen, SearchChoice(device="auto")).scores(queries)
    assert not cards.held
    with pytest.raises(InvalidInputError, match="faiss finds none"):
        LeadingClasses(split, chosen, SearchChoice(device="cuda")).scores(queries)


def test_bad_input(make: Make) -> None:
    values, labels = clustered(5, 90)
    split = make(values, labels)
    chosen = ClassRows.of(split.class_index, [0, 1])
    with pytest.raises(InvalidInputError, match="fastest"):
        SearchChoice("fastest")
    with pytest.raises(InvalidInputError, match="query 1 holds a NaN"):
        LeadingClasses(split, chosen).scores(torch.tensor([[1.0] * DIM, [torch.nan] * DIM]))
    with pytest.raises(InvalidInputError, match="no bounded index"):
        LeadingClasses(split, chosen, SearchChoice("bounded")).scores(torch.ones(1, DIM))
    if not torch.cuda.is_available():
        with pytest.raises(InvalidInputError, match="cuda"):
            SearchChoice(device="cuda")
