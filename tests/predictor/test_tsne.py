"""Exact t-SNE against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actstore.errors import InvalidInputError
from predictor.tsne import (
    TsneConfig,
    conditional_affinities,
    joint_affinities,
    loss_and_gradient,
    squared_distances,
    tsne,
)

pytestmark = pytest.mark.numeric

SHORT = TsneConfig(steps=300, early=100)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(12, 40), perplexity=st.floats(2, 10))
def test_every_point_has_the_perplexity_asked_for(seed: int, count: int, perplexity: float) -> None:
    random = np.random.default_rng(seed)
    points = random.standard_normal((count, 5)) * random.uniform(0.01, 100)
    share = conditional_affinities(squared_distances(points), perplexity)
    np.testing.assert_allclose(share.sum(1), 1)
    assert (np.diag(share) == 0).all()
    entropy = -(share * np.log(np.where(share > 0, share, 1))).sum(1)
    np.testing.assert_allclose(np.exp(entropy), perplexity, rtol=1e-4)


def test_distances_are_those_of_the_definition(random: np.random.Generator) -> None:
    points = random.standard_normal((9, 4)) + 50
    expected = ((points[:, None] - points[None]) ** 2).sum(2)
    np.testing.assert_allclose(squared_distances(points), expected, atol=1e-9)


def test_joint_affinities_are_symmetric_and_sum_to_one(random: np.random.Generator) -> None:
    joint = joint_affinities(random.standard_normal((20, 3)), 5)
    np.testing.assert_allclose(joint, joint.T)
    assert joint.sum() == pytest.approx(1)


def test_the_loss_is_the_divergence_and_the_gradient_its_slope(random: np.random.Generator) -> None:
    wanted = torch.from_numpy(joint_affinities(random.standard_normal((10, 4)), 3))
    places = torch.from_numpy(random.standard_normal((10, 2)))
    loss, gradient = loss_and_gradient(wanted, places)
    kernel = 1 / (1 + squared_distances(places.numpy()))
    np.fill_diagonal(kernel, 0)
    found = kernel / kernel.sum()
    off = ~np.eye(10, dtype=bool)
    expected = (wanted.numpy()[off] * np.log(wanted.numpy()[off] / found[off])).sum()
    assert float(loss) == pytest.approx(expected)
    step = 1e-6
    for row, column in ((0, 0), (3, 1), (9, 0)):
        moved = places.clone()
        moved[row, column] += step
        back = places.clone()
        back[row, column] -= step
        slope = (loss_and_gradient(wanted, moved)[0] - loss_and_gradient(wanted, back)[0]) / (2 * step)
        assert float(gradient[row, column]) == pytest.approx(float(slope), rel=1e-4, abs=1e-8)


def test_clusters_lie_apart_and_the_same_points_give_the_same_map(random: np.random.Generator) -> None:
    labels = np.repeat(np.arange(4), 15)
    points = 12 * random.standard_normal((4, 10))[labels] + random.standard_normal((60, 10))
    places = tsne(points, SHORT)
    assert places.shape == (60, 2)
    nearest = np.argsort(squared_distances(places) + np.diag(np.full(60, np.inf)), axis=1)[:, :5]
    assert (labels[nearest] == labels[:, None]).mean() > 0.98
    np.testing.assert_array_equal(places, tsne(points, SHORT))


def test_descent_lowers_the_divergence(random: np.random.Generator) -> None:
    points = random.standard_normal((50, 6)) + 5 * random.standard_normal((5, 6)).repeat(10, axis=0)
    wanted = torch.from_numpy(joint_affinities(points, 8))

    def loss(steps: int) -> float:
        places = tsne(points, TsneConfig(perplexity=8, steps=steps, early=steps // 3))
        return float(loss_and_gradient(wanted, torch.from_numpy(places))[0])

    assert loss(300) < 0.5 * loss(3)


def test_few_points_equal_points_and_progress() -> None:
    told: list[int] = []
    places = tsne(np.ones((6, 3)), TsneConfig(steps=10, early=5), told.append)
    assert np.isfinite(places).all()
    assert sum(told) == 10


@pytest.mark.parametrize("points", [np.zeros((3, 2)), np.zeros(5), np.array([[np.nan, 1.0]] * 5)])
def test_unusable_points_are_refused(points: np.ndarray) -> None:
    with pytest.raises(InvalidInputError, match="t-SNE needs"):
        tsne(points)
