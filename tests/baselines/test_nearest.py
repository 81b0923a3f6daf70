"""Nearest neighbour, class mean, imprinting and the nearest oracle against plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import actstore
from actstore.errors import InvalidInputError
from actstore.streams.sampling import draw_support
from baselines.class_mean import ClassMean
from baselines.imprint import Imprint
from baselines.nearest_neighbour import SHARES, NearestNeighbour
from baselines.oracle import NearestOracle
from baselines.simple_shot import SimpleShot
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.head import Head
from predictor.protocol.method import Method

pytestmark = pytest.mark.numeric

SPLIT = CategorySplit(("c4", "c0", "c2", "c5"), ("c1", "c3"))
Array = NDArray[np.float64]
COSINE = 1e-5  # float32 rounds a cosine of 16 dimensions by less than 50 * 2**-24 in any order of its sums


def unit(values: Array) -> Array:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def prepared(method: Method, train: actstore.Split, names: tuple[str, ...] = SPLIT.base) -> Method:
    method.prepare(BaseCategories.of_split(train, names))
    return method


def rows_of(train: actstore.Split, name: str) -> Array:
    return np.asarray(train.of_class(name), np.float64)


def test_nearest_neighbour(train: actstore.Split, queries: torch.Tensor, draw: Callable[..., torch.Tensor]) -> None:
    support = draw(2)
    wanted = unit(queries.numpy().astype(float))
    base = [(wanted @ unit(rows_of(train, name)).T).max(1) for name in SPLIT.base]
    novel = [(wanted @ unit(some.numpy().astype(float)).T).max(1) for some in support]
    method = prepared(NearestNeighbour(), train)
    np.testing.assert_allclose(method.scores(queries, support), np.stack([*base, *novel], 1), atol=COSINE)
    assert (method.name, method.share, method.finetuned) == ("NN+Cosine", "100%", False)
    examples, other = support[None], queries.flip(0)
    alone, episode = method.novel_scores(other, support), method.episode_scores(examples, other[None])[0]
    torch.testing.assert_close(alone, episode, rtol=0, atol=COSINE)
    other *= torch.rand(16, generator=torch.Generator().manual_seed(0))  # in place: what was kept of it is outdated
    alone, episode = method.novel_scores(other, support), method.episode_scores(examples, other[None])[0]
    torch.testing.assert_close(alone, episode, rtol=0, atol=COSINE)


def test_class_mean(train: actstore.Split, queries: torch.Tensor, draw: Callable[..., torch.Tensor]) -> None:
    support = draw(3)
    means = [rows_of(train, name).mean(0) for name in SPLIT.base]
    means += [some.numpy().astype(float).mean(0) for some in support]
    expected = unit(queries.numpy().astype(float)) @ unit(np.stack(means)).T
    np.testing.assert_allclose(prepared(ClassMean(), train).scores(queries, support), expected, atol=COSINE)


def test_simple_shot(train: actstore.Split, queries: torch.Tensor, draw: Callable[..., torch.Tensor]) -> None:
    support = draw(3)
    means = np.stack([unit(rows_of(train, name)).mean(0) for name in SPLIT.base])
    centre = means.mean(0)
    examples = np.stack([unit(some.numpy().astype(float)).mean(0) for some in support])
    rows = unit(np.concatenate([means, examples]) - centre)
    expected = unit(unit(queries.numpy().astype(float)) - centre) @ rows.T
    np.testing.assert_allclose(prepared(SimpleShot(), train).scores(queries, support), expected, atol=COSINE)


@pytest.mark.parametrize("with_head", [True, False])
def test_imprint(
    train: actstore.Split, queries: torch.Tensor, draw: Callable[..., torch.Tensor], with_head: bool
) -> None:
    support = draw(3)
    head = Head(torch.randn(4, 16, generator=torch.Generator().manual_seed(1)), torch.ones(4), SPLIT.base[::-1])
    rows = [unit(rows_of(train, name)).mean(0) for name in SPLIT.base]
    if with_head:
        rows = list(head.weight.numpy().astype(float)[::-1])
    rows += [unit(some.numpy().astype(float)).mean(0) for some in support]
    method = prepared(Imprint(head if with_head else None), train)
    expected = unit(queries.numpy().astype(float)) @ unit(np.stack(rows)).T
    np.testing.assert_allclose(method.scores(queries, support), expected, atol=COSINE)


def test_the_nearest_oracle_has_all_rows_and_no_need_of_support(
    train: actstore.Split, queries: torch.Tensor, draw: Callable[..., torch.Tensor]
) -> None:
    oracle = prepared(NearestOracle(SPLIT.novel), train)
    wanted = unit(queries.numpy().astype(float))
    expected = np.stack([(wanted @ unit(rows_of(train, name)).T).max(1) for name in (*SPLIT.base, *SPLIT.novel)], 1)
    np.testing.assert_allclose(oracle.scores(queries, draw(1)), expected, atol=COSINE)
    assert (oracle.name, oracle.share, oracle.uses_support) == ("Oracle NN", "100%", False)


@pytest.mark.parametrize("make", [NearestNeighbour, ClassMean, Imprint, SimpleShot])
def test_an_episode_scores_like_the_novel_part(
    train: actstore.Split, queries: torch.Tensor, draw: Callable[..., torch.Tensor], make: Callable[[], Method]
) -> None:
    method = prepared(make(), train)
    first, second = draw(3), draw(3, number=1)
    both = method.episode_scores(torch.stack([first, second]), torch.stack([queries, queries.flip(0)]))
    torch.testing.assert_close(both[0], method.novel_scores(queries, first), rtol=0, atol=COSINE)
    torch.testing.assert_close(both[1], method.novel_scores(queries.flip(0), second), rtol=0, atol=COSINE)


def test_shares_are_nested_and_leave_no_class_empty(train: actstore.Split) -> None:
    base = BaseCategories.of_split(train, ("c4", "c0"))
    kept = [base.draw(share, seed=3) for share in (1.0, 0.5, 0.1, 0.001)]
    assert [np.diff(some.offsets).tolist() for some in kept] == [[30, 30], [15, 15], [3, 3], [1, 1]]
    for larger, smaller in pairwise(kept):
        assert set(smaller.rows) < set(larger.rows)
    assert set(train.labels[kept[2].rows[:3]]) == {4}
    assert set(base.draw(0.1, seed=4).rows) != set(kept[2].rows)
    with pytest.raises(InvalidInputError, match="share must be above 0 and at most 1, got 0"):
        base.draw(0, seed=0)


def test_rows_that_are_asked_about_are_not_known(train: actstore.Split) -> None:
    left_out = np.concatenate([train.class_index.rows(4)[:7], train.class_index.rows(0)[-2:]])
    base = BaseCategories.of_split(train, ("c4", "c0"), left_out=left_out)
    assert np.diff(base.draw().offsets).tolist() == [23, 28]
    assert not set(base.draw().rows) & set(left_out.tolist())
    rest = [np.setdiff1d(train.class_index.rows(label), left_out) for label in (4, 0)]
    means = [np.asarray(train.take(rows), np.float64).mean(0) for rows in rest]
    np.testing.assert_allclose(base.means, means, rtol=1e-5)
    directions = [unit(np.asarray(train.take(rows), np.float64)).mean(0) for rows in rest]
    np.testing.assert_allclose(base.mean_directions, directions, atol=COSINE)
    method = NearestNeighbour()
    method.prepare(base)
    asked = train.to_torch(left_out[:1], dtype=torch.float32)
    assert method.base_scores(asked).max() < 1 - 1e-6  # not its own neighbour


def test_a_base_category_is_by_default_scored_as_its_mean(queries: torch.Tensor) -> None:
    class Dot(Method):
        name = "dot"

        def novel_scores(self, queries: torch.Tensor, support: torch.Tensor) -> torch.Tensor:
            return queries @ support.mean(1).T

    method, means = Dot(), torch.rand(3, 16)
    method.prepare(BaseCategories(("a", "b", "c"), means))
    torch.testing.assert_close(method.base_scores(queries), queries @ means.T)
    examples = torch.rand(2, 5, 4, 16)
    torch.testing.assert_close(method.episode_scores(examples, queries[None].expand(2, -1, -1))[1],
                               queries @ examples[1].mean(1).T)  # fmt: skip
    with pytest.raises(InvalidInputError, match=r"\(3, dim\), got \(2, 16\)"):
        BaseCategories(("a", "b", "c"), means[:2])


def test_the_figures_of_the_real_data(real_activations: Path, tmp_path: Path) -> None:
    """One draw, so only near the means over 20 that the data came with: 39.68 / 3.90 and 54.44 / 2.01."""
    with np.load(real_activations) as file:
        names = [str(name) for name in file["classes"]]
        base, novel = (tuple(names[place] for place in file[part]) for part in ("base", "novel"))
        store = actstore.from_arrays(
            tmp_path / "mini.zarr", {part: (file[part], file[f"{part}_labels"]) for part in ("train", "val")},
            classes=names,
        )  # fmt: skip
    train, val = store["train"], store["val"]
    labels = np.array([names.index(name) for name in novel])
    rows = draw_support(train.class_index, labels, 1, 0, 0)
    support = train.to_torch(rows.ravel(), dtype=torch.float32)[:, None]
    place = {names.index(name): position for position, name in enumerate((*base, *novel))}
    targets = torch.tensor([place[label] for label in val.labels.tolist()])
    queries = val.to_torch(dtype=torch.float32)
    for method, expected in (
        (NearestNeighbour(SHARES[2]), (39.7, 3.9)),
        (ClassMean(), (54.4, 2.0)),
    ):
        right = (prepared(method, train, base).scores(queries, support).argmax(1) == targets).float()
        found = (100 * right[targets < 80].mean(), 100 * right[targets >= 80].mean())
        assert found == pytest.approx(expected, abs=1.5), method.name
