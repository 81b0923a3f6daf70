"""Ridge regression and Tip-Adapter against plain formulas, and the attention over base weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import actstore
import baselines
from actstore.errors import InvalidInputError
from baselines.attention_weights import AttentionConfig, AttentionTrainee, AttentionWeights, WeightGenerator
from baselines.large_sample import train_on_rows
from baselines.ridge import Ridge
from baselines.tip_adapter import TipAdapter
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.method import Method
from tests.baselines.conftest import SPLIT

pytestmark = pytest.mark.numeric
Draw = Callable[..., torch.Tensor]


def directions(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def base_rows(train: actstore.Split) -> list[np.ndarray]:
    return [directions(train.of_class(name)) for name in SPLIT.base]


@pytest.mark.parametrize("shots", [1, 3])
def test_ridge_solves_the_weighted_least_squares_of_base_rows_and_examples(
    train: actstore.Split, base: BaseCategories, queries: torch.Tensor, draw: Draw, shots: int
) -> None:
    method, support = Ridge(strength=0.5), draw(shots)
    method.prepare(base)
    groups, novel = base_rows(train), list(directions(support.numpy()))
    centre = np.mean([group.mean(0) for group in groups], axis=0)
    asked = directions(queries.numpy()) - centre

    def solve(shown: list[np.ndarray]) -> np.ndarray:
        moments = [(group - centre).T @ (group - centre) / len(group) / len(groups) for group in shown]
        penalty = 0.5 * np.trace(sum(moments[: len(groups)])) / len(centre)
        means = np.array([(group - centre).mean(0) for group in shown])
        return asked @ np.linalg.solve(sum(moments) + penalty * np.eye(len(centre)), means.T)

    np.testing.assert_allclose(method.base_scores(queries), solve(groups), rtol=1e-2, atol=2e-3)
    expected = solve([*groups, *novel])[:, len(groups) :]
    np.testing.assert_allclose(method.novel_scores(queries, support), expected, rtol=1e-2, atol=2e-3)


def test_tip_adapter_is_a_classifier_and_a_cache(
    train: actstore.Split, base: BaseCategories, queries: torch.Tensor, draw: Draw
) -> None:
    method, support = TipAdapter(weight=2.0, sharpness=3.0), draw(3)
    method.prepare(base)
    asked, shown = directions(queries.numpy()), directions(support.numpy())
    near = np.exp(-3 * (1 - np.einsum("nd,wsd->nws", asked, shown))).mean(2)
    expected = asked @ directions(support.numpy().mean(1)).T + 2 * near
    np.testing.assert_allclose(method.novel_scores(queries, support), expected, rtol=1e-4)
    found = method.base_scores(queries).numpy() - asked @ directions(base.means.numpy()).T
    assert ((found > 0) & (found < 2)).all()  # 16 of 30 rows of each category
    everything = [np.exp(-3 * (1 - asked @ rows.T)).mean(1) * 2 for rows in base_rows(train)]
    np.testing.assert_allclose(found, np.array(everything).T, atol=0.3)


@pytest.mark.parametrize("make", [Ridge, TipAdapter])
def test_tasks_are_scored_as_one_by_one(
    base: BaseCategories, queries: torch.Tensor, draw: Draw, make: Callable[[], Method]
) -> None:
    method = make()
    method.prepare(base)
    support = torch.stack([draw(2), draw(2, 1)])
    together = method.episode_scores(support, torch.stack([queries, queries]))
    for task, examples in zip(together, support, strict=True):
        torch.testing.assert_close(task, method.novel_scores(queries, examples), rtol=1e-4, atol=1e-5)


def test_attention_starts_as_class_means_and_learns(
    train: actstore.Split, base: BaseCategories, tmp_path: Path
) -> None:
    generator = WeightGenerator(base.mean_directions)
    examples = train.to_torch(np.arange(6), dtype=torch.float32).view(2, 3, -1)
    means = torch.nn.functional.normalize(examples, dim=-1).mean(1)
    torch.testing.assert_close(generator(examples, torch.arange(4)), means)
    config = AttentionConfig(steps=60, way=2, queries=16, learning_rate=0.05)
    trained = train_on_rows(AttentionTrainee, "attention", train, SPLIT.base, tmp_path / "attention", config)
    log = np.genfromtxt(tmp_path / "attention" / "log.csv", delimiter=",", names=True)
    assert float(np.atleast_1d(log["loss"])[-1]) < np.log(4)
    again = train_on_rows(AttentionTrainee, "attention", train, SPLIT.base, tmp_path / "again", config)
    assert all(torch.equal(trained.tensors[name], again.tensors[name]) for name in trained.tensors)


def test_attention_is_over_the_base_categories_that_are_known(
    train: actstore.Split, queries: torch.Tensor, draw: Draw, tmp_path: Path
) -> None:
    trained, _ = baselines.train("attention", tmp_path / "attention", store=train.store_path, split=SPLIT, steps=3)
    method = AttentionWeights(trained)
    method.prepare(BaseCategories.of_split(train, SPLIT.base))
    whole = method.base_scores(queries)
    method.prepare(BaseCategories.of_split(train, SPLIT.base[1:3]))
    torch.testing.assert_close(method.base_scores(queries), whole[:, 1:3])
    assert method.novel_scores(queries, draw(2)).shape == (11, 2)
    with pytest.raises(InvalidInputError):
        train_on_rows(AttentionTrainee, "attention", train, SPLIT.base[:2], tmp_path / "two", AttentionConfig())
