from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from predictor.phi.network import Phi
from predictor.phi.rule import PhiMethod
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.calibration import Calibration, nearest_shots
from predictor.protocol.evaluation import CalibratedMethod
from predictor.protocol.method import Aggregate

pytestmark = pytest.mark.numeric


def positive(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def support(n_novel: int, shots: int, seed: int = 3) -> torch.Tensor:
    return positive(n_novel, shots, 16, seed=seed)


def prepared(phi: Phi, means: torch.Tensor, aggregate: Aggregate = "max", novel_bias: float = 0.0) -> PhiMethod:
    method = PhiMethod(phi, aggregate, novel_bias)
    base = BaseCategories([f"b{place}" for place in range(len(means))], means)
    base.means = means  # as precise as they are given
    method.prepare(base)
    return method


def plain_novel(phi: Phi, queries: torch.Tensor, examples: torch.Tensor, aggregate: Aggregate) -> list[list[float]]:
    """Category by category, example by example."""
    table = []
    for query in queries:
        line = []
        for category in examples:
            rows = [category.mean(0)] if aggregate == "mean" else list(category)
            line.append(max(float(phi.logits(phi(row[None]), query[None])) for row in rows))
        table.append(line)
    return table


@pytest.mark.parametrize("aggregate", ["max", "mean"])
@pytest.mark.parametrize("query_norm", [True, False])
def test_scores_against_a_loop(make_phi: Callable[..., Phi], aggregate: Aggregate, query_norm: bool) -> None:
    phi = make_phi(bias=True, query_norm=query_norm)
    means, queries, shown = positive(4, 16), positive(5, 16, seed=1), support(3, 2)
    method = prepared(phi, means, aggregate, 0.25)
    base = [[float(phi.logits(phi(mean[None]), query[None])) for mean in means] for query in queries]
    novel = np.array(plain_novel(phi, queries, shown, aggregate)) + 0.25
    expected = np.concatenate([base, novel], axis=1)
    np.testing.assert_allclose(method.scores(queries, shown), expected, rtol=1e-4, atol=1e-5)


def test_one_example_is_its_own_mean(make_phi: Callable[..., Phi]) -> None:
    phi, queries, shown = make_phi(), positive(5, 16), support(3, 1)
    found = [prepared(phi, positive(2, 16), way).novel_scores(queries, shown) for way in ("max", "mean")]
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("aggregate", ["max", "mean"])
def test_episodes_score_every_task_as_it_would_be_alone(make_phi: Callable[..., Phi], aggregate: Aggregate) -> None:
    shown, queries = positive(4, 5, 3, 16).double(), positive(4, 7, 16, seed=1).double()
    method = prepared(make_phi().double(), positive(2, 16).double(), aggregate)
    found = method.episode_scores(shown, queries)
    assert found.shape == (4, 7, 5)
    for task in range(4):
        alone = method.novel_scores(queries[task], shown[task])
        torch.testing.assert_close(found[task], alone)


def test_a_calibrated_phi_takes_the_setting_of_its_shots(make_phi: Callable[..., Phi]) -> None:
    phi, means, queries = make_phi(), positive(2, 16), positive(5, 16, seed=1)
    fits = [Calibration(1, 0.5, 0, 0, "", "max"), Calibration(5, 2.0, 0, 0, "", "mean")]
    for shots, aggregate, bias in (
        (1, "max", 0.5),
        (2, "max", 0.5),
        (3, "max", 0.5),
        (4, "mean", 2.0),
        (5, "mean", 2.0),
    ):
        plain = prepared(phi, means, aggregate, bias)  # type: ignore[arg-type]
        method = CalibratedMethod(prepared(phi, means), fits, shots)
        shown = support(3, shots)
        assert torch.equal(method.novel_scores(queries, shown), plain.novel_scores(queries, shown))
        assert torch.equal(method.base_scores(queries), prepared(phi, means).base_scores(queries))
    assert method.name == "phi2, calibrated, mean"


def test_the_nearest_number_of_shots_and_of_two_the_lower() -> None:
    assert [nearest_shots([5, 1, 3], shots) for shots in (1, 2, 3, 4, 5, 9)] == [1, 1, 3, 3, 5, 5]


@pytest.mark.parametrize(("kind", "name"), [("phi1", "phi1"), ("phi2", "phi2"), ("phi2star", "phi2*")])
def test_names_are_the_papers(make_phi: Callable[..., Phi], kind: str, name: str) -> None:
    assert PhiMethod(make_phi(kind)).name == name
