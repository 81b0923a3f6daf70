"""MAML's meta-gradient against finite differences, in float64 on a network of two channels."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from baselines.learners import Maml

pytestmark = pytest.mark.numeric

WAY, SHOTS, QUERIES = 2, 2, 3


def make(order: Literal["first", "second"] = "second", inner_steps: int = 2) -> tuple[Maml, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    learner = Maml(8, 2, 1, WAY, order, inner_steps, 0.3).double()
    support = torch.randn(2, WAY, SHOTS, 3, 8, 8, generator=random, dtype=torch.float64)
    queries = torch.randn(2, WAY * QUERIES, 3, 8, 8, generator=random, dtype=torch.float64)
    return learner, support, queries


def loss(learner: Maml, support: Tensor, queries: Tensor) -> Tensor:
    targets = torch.arange(WAY).repeat_interleave(QUERIES).repeat(2)
    return functional.cross_entropy(learner.scores(support, queries).flatten(0, 1), targets)


def meta_gradient(*given: Any) -> list[Tensor]:
    return list(torch.autograd.grad(loss(*given), list(given[0].parameters())))


def slope(given: tuple[Maml, Tensor, Tensor], direction: list[Tensor], step: float = 1e-6) -> float:
    """Of the loss along a direction of all weights."""
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            for weight, part in zip(given[0].parameters(), direction, strict=True):
                weight += sign * step * part
            ends.append(loss(*given).item())
            for weight, part in zip(given[0].parameters(), direction, strict=True):
                weight -= sign * step * part
    return (ends[0] - ends[1]) / (2 * step)


def random_direction(learner: Maml, seed: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(weight.shape, generator=random, dtype=torch.float64) for weight in learner.parameters()]


def along(gradient: list[Tensor], direction: list[Tensor]) -> float:
    return sum((one * other).sum().item() for one, other in zip(gradient, direction, strict=True))


@pytest.mark.parametrize("inner_steps", [1, 3])
def test_the_second_order_meta_gradient_is_the_slope_of_the_loss(inner_steps: int) -> None:
    given = make("second", inner_steps)
    gradient = meta_gradient(*given)
    for seed in range(5):
        direction = random_direction(given[0], seed)
        assert along(gradient, direction) == pytest.approx(slope(given, direction), rel=1e-5, abs=1e-7)


def test_the_first_order_one_is_the_gradient_at_the_adapted_weights() -> None:
    learner, support, queries = make("first")
    targets = torch.arange(WAY).repeat_interleave(QUERIES)
    start = dict(learner.network.named_parameters())
    expected = [torch.zeros_like(weight) for weight in start.values()]
    for shown, asked in zip(support, queries, strict=True):
        found_weights = learner.adapt(shown.flatten(0, 1), torch.arange(WAY).repeat_interleave(SHOTS))
        adapted = {name: weight.detach().requires_grad_() for name, weight in found_weights.items()}
        inner = functional.cross_entropy(learner._logits(adapted, asked), targets)
        for place, part in enumerate(torch.autograd.grad(inner, list(adapted.values()))):
            expected[place] += part / 2
    found = meta_gradient(learner, support, queries)
    torch.testing.assert_close(found, expected)
    direction = random_direction(learner, 0)
    assert along(found, direction) != pytest.approx(slope((learner, support, queries), direction), rel=1e-2)


def test_adaptation_is_gradient_descent_on_the_support() -> None:
    learner, support, _ = make(inner_steps=2)
    targets = torch.arange(WAY).repeat_interleave(SHOTS)
    expected = {name: weight.detach() for name, weight in learner.network.named_parameters()}
    for _ in range(2):
        leaves = {name: weight.detach().requires_grad_() for name, weight in expected.items()}
        inner = functional.cross_entropy(learner._logits(leaves, support[0].flatten(0, 1)), targets)
        gradients = torch.autograd.grad(inner, list(leaves.values()))
        expected = {name: leaves[name].detach() - 0.3 * part for name, part in zip(leaves, gradients, strict=True)}
    found = learner.adapt(support[0].flatten(0, 1), targets)
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight)


def test_scoring_leaves_the_weights_alone() -> None:
    learner, _, _ = make()
    learner.float()
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    pixels = torch.randint(0, 255, (1, WAY, SHOTS, 8, 8, 3), dtype=torch.uint8)
    scores = learner.episode_scores(pixels, pixels.flatten(1, 2))
    assert scores.shape == (1, WAY * SHOTS, WAY)
    assert not scores.requires_grad
    for name, tensor in learner.state_dict().items():
        assert torch.equal(tensor, before[name])
