"""Tables of nearest neighbours, Triplet and the nearest oracle by every engine: the figures of all products."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import actstore
from actstore.search import BoundedSearch
from actstore.search.engines import SearchChoice
from actstore.search.index_files import folder
from baselines.large_sample import train_on_rows
from baselines.nearest_neighbour import NearestNeighbour
from baselines.oracle import NearestOracle
from baselines.registry import make
from baselines.triplet import EmbeddedRows, Embedding, TripletConfig, TripletTrainee, trained_embedding
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.evaluation import AllWayTask, all_way_task, measure
from predictor.protocol.method import Method
from predictor.protocol.outcome import Queries
from predictor.protocol.sessions import run_sessions
from predictor.training.loop import read_trained

pytestmark = pytest.mark.numeric

NAMES = [f"c{label}" for label in range(12)]
SPLIT = CategorySplit(tuple(NAMES[:9]), tuple(NAMES[9:]))
SEARCHES = ("auto", "exact", "bounded", "faiss")


@pytest.fixture(params=["close", "tied"])
def task(tmp_path: Path, request: pytest.FixtureRequest) -> AllWayTask:
    """tied: rows of few small integers, with duplicates in base and novel categories and among the queries."""
    random = np.random.default_rng(0)
    centres = random.random((12, 16))
    parts: dict[str, Any] = {}
    for name, each in (("train", 100), ("val", 12)):
        labels = random.permutation(np.repeat(np.arange(12), each))
        rows = np.abs(centres[labels] + 0.3 * random.standard_normal((len(labels), 16)))
        parts[name] = ((np.round(rows * 1.5) if request.param == "tied" else rows).astype(np.float16), labels)
    store = actstore.from_arrays(tmp_path / "x.zarr", parts, classes=NAMES, chunk_rows=64)
    return all_way_task(store["train"], store["val"], SPLIT)


class AllProducts(NearestNeighbour):
    """Every score of every category, in float64: what tables are measured by."""

    def table_base_scores(self, asked: Queries) -> torch.Tensor:
        rows = torch.nn.functional.normalize(
            self._embed(self.base.rows_of_split.to_torch(dtype=torch.float32)).double()
        )
        queries = torch.nn.functional.normalize(self._embed(asked.activations).double())
        cosines = (queries @ rows.T).float()
        groups = zip(self._rows.offsets[:-1], self._rows.offsets[1:], strict=True)
        return torch.stack([cosines[:, self._rows.rows[low:high]].amax(1) for low, high in groups], 1)


def figures(method: Method, task: AllWayTask) -> list[dict[str, list[float]]]:
    return [row.values for row in measure(method, task, (1, 3), 4)]


def close(found: list[dict[str, list[float]]], expected: list[dict[str, list[float]]]) -> None:
    """To the last printed digit; the last of a float64 is the order of its sums."""
    for one, other in zip(found, expected, strict=True):
        for name, values in other.items():
            np.testing.assert_allclose(one[name], values, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("share", [1.0, 0.1])
def test_nearest_neighbours(task: AllWayTask, search: str, share: float) -> None:
    if search == "bounded":
        BoundedSearch.build(task.train)
    method = NearestNeighbour(share, search=SearchChoice(search))
    plain = AllProducts(share)
    close(figures(method, task), figures(plain, task))
    ours, theirs = (run_sessions(one, task, 1, 2, 3).figures for one in (method, plain))
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-9)


@pytest.mark.parametrize("search", SEARCHES)
def test_the_oracle(task: AllWayTask, search: str) -> None:
    if search == "bounded":
        BoundedSearch.build(task.train)

    class Plain(NearestOracle):
        def table_scores(self, asked: Queries, support: Any) -> torch.Tensor:
            plain = AllProducts()
            plain.prepare(BaseCategories.of_split(task.train, (*task.base, *task.novel)))
            return plain.table_base_scores(asked)

    found, expected = (kind(SPLIT.novel, SearchChoice(search)) for kind in (NearestOracle, Plain))
    close(figures(found, task), figures(expected, task))


@pytest.fixture
def runs(task: AllWayTask, tmp_path: Path) -> Path:
    train_on_rows(
        TripletTrainee, "triplet", task.train, task.base, tmp_path / "runs" / "triplet", TripletConfig(steps=5)
    )
    return tmp_path / "runs"


def embedding(runs: Path) -> Embedding:
    return trained_embedding(read_trained(runs / "triplet", "triplet", ""))


@pytest.mark.parametrize("search", SEARCHES)
def test_triplet_embeds_once(task: AllWayTask, runs: Path, search: str) -> None:
    said: list[str] = []
    given: dict[str, Any] = {"train": task.train, "split": SPLIT, "runs": runs, "search": search, "device": "cpu"}
    embed = embedding(runs)
    plain = AllProducts(embed=embed)
    for _ in range(2):
        whole, *_ = make("triplet", **given, say=said.append)
        found, expected = figures(whole, task)[0], figures(plain, task)[0]
        for name in ("top1_large", "top5_few", "auroc"):  # a sum in float32 may end otherwise in the other order
            np.testing.assert_allclose(found[name], expected[name], atol=1.0)
    assert [("embedding" in line, "index" in line) for line in said] == [(True, False), (False, True)][
        : 1 + (search == "bounded")
    ]
    kept = EmbeddedRows(task.train, embed, SearchChoice(search), said.append)()
    assert kept is not None
    assert kept.dtype == np.float32
    np.testing.assert_array_equal(kept.labels, task.train.labels)
    torch.testing.assert_close(kept.to_torch(), embed(task.train.to_torch(dtype=torch.float32)))


def test_an_index_of_the_rows_brings_one_of_the_embedded(task: AllWayTask, runs: Path) -> None:
    BoundedSearch.build(task.train)
    embed = embedding(runs)
    kept = EmbeddedRows(task.train, embed, SearchChoice(), print)()
    assert kept is not None
    assert (folder(kept) / "bounded.json").exists()


def test_an_interrupted_embedding_is_completed(task: AllWayTask, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embed = embedding(runs)
    monkeypatch.setattr("baselines.triplet._BLOCK", 256)
    calls: list[int] = []

    def killed(_self: Any, rows: torch.Tensor) -> torch.Tensor:
        calls.append(len(rows))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return rows + rows @ embed.change.T

    with monkeypatch.context() as patch:
        patch.setattr(Embedding, "forward", killed)
        with pytest.raises(KeyboardInterrupt):
            EmbeddedRows(task.train, embed, SearchChoice(), print)()
    kept = EmbeddedRows(task.train, embed, SearchChoice(), print)()
    assert kept is not None
    torch.testing.assert_close(kept.to_torch(), embed(task.train.to_torch(dtype=torch.float32)))
    np.testing.assert_array_equal(kept.labels, task.train.labels)


def test_rows_of_an_earlier_content_are_removed(task: AllWayTask, runs: Path) -> None:
    embed = embedding(runs)
    stale = folder(task.train) / "embedded-000000000000-000000000000.zarr"
    stale.mkdir(parents=True)
    rows = EmbeddedRows(task.train, embed, SearchChoice(), print)
    rows()
    assert not stale.exists()
    assert rows.path.exists()


def test_where_nothing_can_be_kept_rows_are_embedded_as_they_are_read(task: AllWayTask, runs: Path) -> None:
    said: list[str] = []
    folder(task.train).parent.mkdir(exist_ok=True)
    folder(task.train).write_text("a file where the folder should be")
    whole, *_ = make("triplet", train=task.train, split=SPLIT, runs=runs, say=said.append)
    plain = AllProducts(embed=embedding(runs))
    found, expected = figures(whole, task)[0], figures(plain, task)[0]
    np.testing.assert_allclose(found["top1_large"], expected["top1_large"], atol=1.0)
    assert any("not kept" in line for line in said)
