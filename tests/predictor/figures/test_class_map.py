"""Groups of similar categories, and the map of all categories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from actstore.errors import DamagedError, InvalidInputError
from predictor.figures.class_map import (
    ClassMap,
    make_class_map,
    nearest_rows,
    shared_neighbours,
    similar_groups,
    tsne,
    turned_to,
)

pytestmark = pytest.mark.numeric

SHORT = 250  # steps of t-SNE


def test_groups_are_disjoint_tight_and_of_the_size_asked_for(random: np.random.Generator) -> None:
    centres = np.eye(3, 20).repeat(5, axis=0)
    rows = np.concatenate([10 * centres + 0.1 * random.standard_normal((15, 20)), random.standard_normal((20, 20))])
    groups = similar_groups(rows, 3, 5)
    assert sorted(map(sorted, groups)) == [list(range(0, 5)), list(range(5, 10)), list(range(10, 15))]


def test_no_group_where_there_are_too_few_rows() -> None:
    assert similar_groups(np.ones((3, 2)), 2, 4) == []


def test_nearest_rows_match_a_plain_search(random: np.random.Generator) -> None:
    rows = random.standard_normal((12, 5))
    found = nearest_rows(rows, 3)
    for place, row in enumerate(rows):
        cosine = rows @ row / np.linalg.norm(rows, axis=1)
        cosine[place] = -np.inf
        assert found[place].tolist() == np.argsort(-cosine)[:3].tolist()


def test_shared_neighbours_of_the_same_rows_and_of_unrelated_ones(random: np.random.Generator) -> None:
    rows = random.standard_normal((60, 30))
    assert shared_neighbours(rows, 3 * rows, 5) == 1
    assert shared_neighbours(rows, random.standard_normal((60, 30)), 5) < 0.3


def test_a_map_is_turned_and_mirrored_but_not_bent(random: np.random.Generator) -> None:
    model = random.standard_normal((30, 2))
    turn = np.array([[0.6, 0.8], [0.8, -0.6]])  # a mirror image
    np.testing.assert_allclose(turned_to(model @ turn + 7, model), model - model.mean(0), atol=1e-9)


def test_a_class_map_is_kept_and_read_back(random: np.random.Generator, tmp_path: Path) -> None:
    means = random.random((30, 8))
    found = make_class_map(
        [f"c{number}" for number in range(30)], 24, means, range(24), means[:24] @ random.random((8, 8)), "w", SHORT
    )
    assert len(found.means) == 30
    assert len(found.parameters) == 24
    assert all(max(group) < 24 for group in found.groups)
    assert found.groups
    assert 0 <= found.agreement <= 1
    found.save(tmp_path / "map.json")
    assert ClassMap.load(tmp_path / "map.json") == found
    (tmp_path / "map.json").write_text("{}")
    with pytest.raises(DamagedError, match="make it again"):
        ClassMap.load(tmp_path / "map.json")


def test_means_and_names_must_belong_together() -> None:
    with pytest.raises(InvalidInputError, match="a mean for each of 3 names"):
        make_class_map(["a", "b", "c"], 2, np.ones((2, 4)), [0, 1], np.ones((2, 4)), "w", SHORT)


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
