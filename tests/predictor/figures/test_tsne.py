"""Maps keep neighbours, do not vary from run to run, and refuse what cannot be mapped."""

from __future__ import annotations

import numpy as np
import pytest

from actstore.errors import InvalidInputError
from predictor.figures.class_map import nearest_rows, tsne

pytestmark = pytest.mark.numeric


def test_clusters_lie_apart_and_the_same_points_give_the_same_map(random: np.random.Generator) -> None:
    labels = np.repeat(np.arange(4), 15)
    points = 12 * random.standard_normal((4, 10))[labels] + random.standard_normal((60, 10))
    places = tsne(points, 500)
    assert places.shape == (60, 2)
    np.testing.assert_allclose(places.mean(0), 0, atol=1e-6)
    distances = ((places[:, None] - places[None]) ** 2).sum(2) + np.diag(np.full(60, np.inf))
    assert (labels[np.argsort(distances, axis=1)[:, :5]] == labels[:, None]).mean() > 0.98
    np.testing.assert_array_equal(places, tsne(points, 500))


def test_neighbours_on_a_circle_stay_neighbours() -> None:
    angles = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1) @ np.eye(2, 7)
    places = tsne(circle)
    nearest = nearest_rows(circle, 2)  # by cosine: the one before and the one after
    apart = np.linalg.norm(places[:, None] - places[nearest], axis=2)
    assert np.median(apart) < 0.1 * np.ptp(places, axis=0).max()


@pytest.mark.parametrize("points", [np.ones((6, 3)), np.eye(4), np.arange(8.0)[:, None]])
def test_few_points_equal_points_and_points_on_a_line(points: np.ndarray) -> None:
    places = tsne(points, 250)
    assert places.shape == (len(points), 2)
    assert np.isfinite(places).all()


@pytest.mark.parametrize("points", [np.zeros((3, 2)), np.zeros(5), np.array([[np.nan, 1.0]] * 5)])
def test_unusable_points_are_refused(points: np.ndarray) -> None:
    with pytest.raises(InvalidInputError, match="t-SNE needs"):
        tsne(points)
