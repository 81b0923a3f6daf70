from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.layout.class_index import ClassIndex
from predictor.protocol import episodes
from predictor.protocol.episodes import (
    IGNORED,
    EpisodeResult,
    Examples,
    TaskSize,
    gather_classes,
    plan_task,
    run_episodes,
    task_accuracies,
)
from predictor.protocol.method import EpisodeMethod, Method

pytestmark = pytest.mark.numeric


class NearestMean:
    name = "nearest mean"

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        means = support.mean(2)  # (tasks, way, dim)
        return -(queries[:, :, None] - means[:, None]).square().sum(3)


class Apart(Method):
    """The same, and known to score categories apart."""

    name, scores_categories_apart = "nearest mean", True

    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return self.episode_scores(support[None], queries[None])[0]

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        return NearestMean().episode_scores(support, queries)


def plain_accuracies(values: np.ndarray, index: ClassIndex, size: TaskSize, tasks: int, seed: int) -> np.ndarray:
    """The same by numpy, task by task and query by query."""
    found = []
    for number in range(tasks):
        task = plan_task(index, np.arange(len(index)), size, seed, number)
        means = values[task.support].mean(1)
        right = [
            int(np.argmin(((values[row] - means) ** 2).sum(1)) == target)
            for row, target in zip(task.queries, task.targets, strict=True)
        ]
        found.append(np.mean(right))
    return np.array(found)


@pytest.fixture
def examples(random: np.random.Generator) -> Examples:
    labels = random.integers(0, 8, 300)
    values = random.random((300, 6)) + 0.1 * labels[:, None]  # float64: batches of other sizes round alike
    return Examples(torch.from_numpy(values), ClassIndex([f"c{n}" for n in range(8)], labels), np.arange(8))


@pytest.mark.parametrize("size", [TaskSize(5, 1), TaskSize(3, 4), TaskSize(4, 2, 3)])
@pytest.mark.parametrize("batch_bytes", [1, 5000, 1 << 20])
@pytest.mark.parametrize("independent", [False, True])
def test_accuracies_equal_a_plain_loop(
    examples: Examples, monkeypatch: pytest.MonkeyPatch, size: TaskSize, batch_bytes: int, independent: bool
) -> None:
    monkeypatch.setattr(episodes, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(episodes, "PLANNED", 7)
    method: EpisodeMethod = Apart() if independent else NearestMean()
    done: list[int] = []
    (result,) = run_episodes([method], examples, size, 20, seed=4, progress=done.append)
    expected = plain_accuracies(examples.values.numpy(), examples.index, size, 20, 4)
    np.testing.assert_allclose(result.accuracies, expected, atol=1e-12)
    assert sum(done) == 20
    assert result.ci95 == pytest.approx(1.96 * expected.std(ddof=1) / np.sqrt(20))


def test_every_method_gets_the_same_tasks(examples: Examples) -> None:
    results = run_episodes([NearestMean(), Apart(), NearestMean()], examples, TaskSize(5, 2), 15)
    for result in results[1:]:
        np.testing.assert_array_equal(result.accuracies, results[0].accuracies)


@pytest.mark.parametrize("size", [TaskSize(5, 1), TaskSize(2, 4), TaskSize(4, 2, 3)])
@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
def test_known_against_unknown_equals_every_pair(
    examples: Examples, monkeypatch: pytest.MonkeyPatch, size: TaskSize, batch_bytes: int
) -> None:
    monkeypatch.setattr(episodes, "BATCH_BYTES", batch_bytes)
    alone, independent = run_episodes([NearestMean(), Apart()], examples, size, 6, seed=4)
    assert alone.aurocs is None  # it may look at all categories together
    assert independent.aurocs is not None
    values, known = examples.values.numpy(), (size.way + 1) // 2
    for number, found in enumerate(independent.aurocs):
        task = plan_task(examples.index, np.arange(8), size, 4, number)
        means = values[task.support].mean(1)[:known]
        familiar = np.array([-((values[row] - means) ** 2).sum(1).min() for row in task.queries])
        inside, outside = familiar[task.targets < known], familiar[task.targets >= known]
        assert found == pytest.approx(np.mean(inside[:, None] > outside[None, :]))
    assert independent.auroc == pytest.approx(independent.aurocs.mean())


def test_the_lower_category_wins_a_tie_and_padding_does_not_count() -> None:
    class Undecided:
        name = "undecided"

        def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
            return torch.zeros(*queries.shape[:2], support.shape[1])

    labels = np.repeat(np.arange(3), [4, 5, 6])
    few = Examples(torch.rand(15, 2), ClassIndex(["a", "b", "c"], labels), np.arange(3))
    (result,) = run_episodes([Undecided()], few, TaskSize(2, 1), 30)
    for number in range(30):
        task = plan_task(few.index, few.labels, TaskSize(2, 1), 0, number)
        assert result.accuracies[number] == pytest.approx((task.targets == 0).mean())
    accuracies = task_accuracies(np.array([[0, 1, 0]]), np.array([[0, 0, IGNORED]]))
    np.testing.assert_array_equal(accuracies, [0.5])


def test_rows_of_several_splits_are_pooled(make_store: Any) -> None:
    store = make_store()
    with store.writer("val") as writer:
        writer.append(store.values[:200] + 1, store.labels[:200], [f"v{row}.jpg" for row in range(200)])
    pooled = gather_classes([store["train"], store["val"]], ["5", "2"])
    expected = [
        np.concatenate([store.values[store.labels == label], (store.values[:200] + 1)[store.labels[:200] == label]])
        for label in (5, 2)
    ]
    np.testing.assert_array_equal(pooled.values.numpy(), np.concatenate(expected).astype(np.float32))
    assert pooled.index.counts.tolist() == [len(part) for part in expected]
    assert pooled.index.names == ("5", "2")


def test_too_few_tasks() -> None:
    one = Examples(torch.rand(4, 2), ClassIndex(["a", "b"], np.array([0, 0, 1, 1])), np.arange(2))
    with pytest.raises(InvalidInputError, match="expected 1 task or more, got 0"):
        run_episodes([NearestMean()], one, TaskSize(2, 1), 0)
    assert np.isnan(EpisodeResult("x", TaskSize(), np.array([0.5]), 0.0).ci95)


def test_real_activations(real_activations: Any, tmp_path: Any) -> None:
    """Cosine class means on mini-ImageNet's novel categories: well above chance, and as a plain loop says."""
    with np.load(real_activations) as data:
        chosen = np.isin(data["val_labels"], data["novel"])
        values, labels = data["val"][chosen].astype(np.float64), data["val_labels"][chosen]
    order = {label: place for place, label in enumerate(sorted(set(labels.tolist())))}
    index = ClassIndex([str(place) for place in order.values()], np.array([order[label] for label in labels.tolist()]))
    unit = torch.nn.functional.normalize(torch.from_numpy(values), dim=1)
    few = Examples(unit, index, np.arange(len(index)))
    (result,) = run_episodes([NearestMean()], few, TaskSize(5, 5), 20)
    np.testing.assert_allclose(
        result.accuracies, plain_accuracies(unit.numpy(), index, TaskSize(5, 5), 20, 0), atol=2e-3
    )
    assert result.accuracy > 0.5
