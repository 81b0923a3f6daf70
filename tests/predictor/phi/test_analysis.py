from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from actstore.errors import InvalidInputError
from predictor.phi.network import PAPER, Phi, PhiSpec, analyse, impact, top_k_similarity

pytestmark = pytest.mark.numeric


def test_impact_is_the_sum_of_magnitudes_of_a_column() -> None:
    weights = torch.tensor([[1.0, -2.0, 0.5], [-3.0, 0.0, 0.25]])
    assert impact(weights).tolist() == [4.0, 2.0, 0.75]
    assert impact(torch.eye(5)).tolist() == [1.0] * 5


@given(
    st.integers(1, 12).flatmap(lambda dim: st.tuples(*[st.lists(st.integers(0, 5), min_size=dim, max_size=dim)] * 2))
)
def test_top_k_similarity_against_sets(impacts: tuple[list[int], list[int]]) -> None:
    """Of equal impacts the lower channel comes first."""
    dim = len(impacts[0])
    orders = [sorted(range(dim), key=lambda channel: (-values[channel], channel)) for values in impacts]
    expected = [len(set(orders[0][:k]) & set(orders[1][:k])) / k for k in range(1, dim + 1)]
    found = top_k_similarity(np.array(impacts[0]), np.array(impacts[1]))
    np.testing.assert_allclose(found, expected)
    assert found[-1] == 1
    np.testing.assert_allclose(top_k_similarity(np.array(impacts[1]), np.array(impacts[0])), expected)


def test_a_random_order_shares_k_of_dim_on_average() -> None:
    random = np.random.default_rng(0)
    fixed = random.random(20)
    drawn = np.mean([top_k_similarity(fixed, random.random(20)) for _ in range(2000)], axis=0)
    np.testing.assert_allclose(np.arange(1, 21) / 20, drawn, atol=0.03)


@pytest.mark.parametrize("shapes", [((3,), (4,)), ((2, 2), (2, 2))])
def test_impacts_of_different_shapes(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(InvalidInputError, match=r"expected two impacts \(dim,\) of one dim"):
        top_k_similarity(np.ones(shapes[0]), np.ones(shapes[1]))


def test_the_identity_treats_all_channels_alike() -> None:
    found = analyse(Phi(PhiSpec("phi1", 16)), None)
    assert (found["diagonal_min"], found["diagonal_max"], found["diagonal_share_mean"]) == (1, 1, 1)
    assert (found["impact_mean"], found["impact_std"]) == (1, 0)
    assert "top_k_similarity" not in found


@pytest.mark.parametrize("kind", ["phi1", "phi2"])
def test_figures_beside_a_head(make_phi: Callable[..., Phi], kind: str) -> None:
    phi, head = make_phi(kind), torch.randn(7, 16, generator=torch.Generator().manual_seed(1))
    found = analyse(phi, head)
    weights = phi.layers[0].get_parameter("weight").double().numpy()  # the layer that reads the channels
    assert found["diagonal_min"] == pytest.approx(np.diag(weights).min())
    assert found["diagonal_max"] == pytest.approx(np.diag(weights).max())
    shares = [abs(weights[i, i]) / np.abs(weights[i]).sum() for i in range(16)]
    assert found["diagonal_share_mean"] == pytest.approx(np.mean(shares))
    columns = np.abs(weights).sum(0)
    assert (found["impact_mean"], found["impact_std"]) == pytest.approx((columns.mean(), columns.std()))
    of_head = np.abs(head.double().numpy()).sum(0)
    unit = of_head / np.sqrt((of_head**2).sum())
    assert (found["head_impact_mean"], found["head_impact_std"]) == pytest.approx((unit.mean(), unit.std()))
    top = [set(np.argsort(-values)[:10].tolist()) for values in (columns, of_head)]
    assert found["top_k_similarity"] == {1: pytest.approx(found["similarity_curve"][0]), 10: len(top[0] & top[1]) / 10}
    assert found["random_similarity"] == {1: 1 / 16, 10: 10 / 16}


def test_a_head_that_copies_phi_has_the_same_order(make_phi: Callable[..., Phi]) -> None:
    phi = make_phi("phi1")
    found = analyse(phi, 3 * phi.layers[0].get_parameter("weight"))
    assert found["similarity_curve"] == [1.0] * 16


def test_a_head_of_another_dim(make_phi: Callable[..., Phi]) -> None:
    with pytest.raises(InvalidInputError, match="the head reads activations of dim 8, phi of 16"):
        analyse(make_phi(), torch.ones(3, 8))


def test_the_papers_figures() -> None:
    assert (PAPER["diagonal_min"], PAPER["diagonal_max"]) == (0.744, 0.976)
    assert (PAPER["head_impact_mean"], PAPER["head_impact_std"]) == (2.13e-2, 5.83e-3)
    assert set(PAPER) <= set(analyse(Phi(PhiSpec("phi1", 4)), torch.eye(4)))
