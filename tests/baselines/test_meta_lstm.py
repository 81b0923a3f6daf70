"""The LSTM's update against plain numpy, and its gradients against finite differences, in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from actstore.backbones.construction import seeded
from baselines.learners import LearntOptimiser, MetaLstm, State, preprocess

pytestmark = pytest.mark.numeric

N, HIDDEN, STEPS = 6, 3, 4


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


@pytest.fixture
def optimiser() -> LearntOptimiser:
    with seeded(0):
        made = LearntOptimiser(HIDDEN, first_rate=0.2).double()
        for gate in (made.forget, made.enter):
            nn.init.normal_(gate.weight, std=0.5)
    return made


@pytest.fixture
def history() -> tuple[Tensor, Tensor, Tensor]:
    """First weights (N,), gradients (STEPS, N), some of them tiny, and losses (STEPS,)."""
    random = torch.Generator().manual_seed(1)
    gradients = torch.randn(STEPS, N, generator=random, dtype=torch.float64)
    gradients[:, 0] *= 1e-6
    first = torch.randn(N, generator=random, dtype=torch.float64)
    return first, gradients, torch.rand(STEPS, generator=random, dtype=torch.float64)


def unrolled(optimiser: LearntOptimiser, first: Tensor, gradients: Tensor, losses: Tensor) -> Tensor:
    weights, state = first, None
    for gradient, loss in zip(gradients, losses, strict=True):
        weights, state = optimiser(weights, gradient, loss, state)
    return weights


def plain_update(optimiser: LearntOptimiser, first: Tensor, gradients: Tensor, losses: Tensor) -> np.ndarray:
    """The equations of the paper, coordinate by coordinate."""
    reader = {name: weight.detach().numpy() for name, weight in optimiser.reader.named_parameters()}
    gates = [(gate.weight.detach().numpy()[0], gate.bias.item()) for gate in (optimiser.forget, optimiser.enter)]
    weights = first.numpy().copy()
    for place in range(N):
        hidden, cell, last = np.zeros(HIDDEN), np.zeros(HIDDEN), [1.0, 0.0]
        for gradient, loss in zip(gradients[:, place].tolist(), losses.tolist(), strict=True):
            seen = np.concatenate([plain_preprocess(gradient), plain_preprocess(loss)])
            parts = reader["weight_ih"] @ seen + reader["bias_ih"] + reader["weight_hh"] @ hidden + reader["bias_hh"]
            enter, keep, new, out = np.split(parts, 4)
            cell = sigmoid(keep) * cell + sigmoid(enter) * np.tanh(new)
            hidden = sigmoid(out) * np.tanh(cell)
            last = [
                float(sigmoid(weight @ np.concatenate([hidden, [weights[place], before]]) + bias))
                for (weight, bias), before in zip(gates, last, strict=True)
            ]
            weights[place] = last[0] * weights[place] - last[1] * gradient
    return weights


def plain_preprocess(value: float) -> list[float]:
    if abs(value) >= np.exp(-10):
        return [np.log(abs(value)) / 10, np.sign(value)]
    return [-1.0, np.exp(10) * value]


def check_slopes(function: Callable[[], Tensor], parameters: list[Tensor]) -> None:
    """Of a scalar function with respect to each parameter, along random directions."""
    gradients = torch.autograd.grad(function(), parameters)
    random = torch.Generator().manual_seed(2)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        direction = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
        ends = []
        with torch.no_grad():
            for sign in (1, -2, 1):
                parameter += sign * 1e-6 * direction
                ends.append(function().item())
        expected = (ends[0] - ends[1]) / 2e-6
        assert (gradient * direction).sum().item() == pytest.approx(expected, rel=1e-5, abs=1e-8)


def test_the_update_is_that_of_the_paper(optimiser: LearntOptimiser, history: tuple[Tensor, Tensor, Tensor]) -> None:
    found = unrolled(optimiser, *history).detach().numpy()
    np.testing.assert_allclose(found, plain_update(optimiser, *history), rtol=1e-12)


def test_its_gradients_are_slopes(optimiser: LearntOptimiser, history: tuple[Tensor, Tensor, Tensor]) -> None:
    first, gradients, losses = history
    first = first.requires_grad_()
    wanted = torch.linspace(-1, 1, N, dtype=torch.float64)
    check_slopes(
        lambda: (wanted * unrolled(optimiser, first, gradients, losses)).sum(), [first, *optimiser.parameters()]
    )


def test_the_meta_gradient_through_a_network_is_a_slope() -> None:
    """Over one update: with more, gradients that are taken as given depend on the optimiser by themselves."""
    random = torch.Generator().manual_seed(0)
    learner = MetaLstm(8, 2, 1, way=2, inner_steps=1, hidden=HIDDEN, first_rate=0.3).double()
    support = torch.randn(1, 2, 2, 3, 8, 8, generator=random, dtype=torch.float64)
    queries = torch.randn(1, 4, 3, 8, 8, generator=random, dtype=torch.float64)
    targets = torch.tensor([0, 0, 1, 1])
    check_slopes(
        lambda: functional.cross_entropy(learner.scores(support, queries)[0], targets),
        list(learner.optimiser.parameters()),
    )
    learnt = [name for name, _ in learner.named_parameters() if not name.startswith("optimiser.")]
    assert learnt == ["first"]


def test_an_untrained_optimiser_is_gradient_descent() -> None:
    made = LearntOptimiser(HIDDEN, first_rate=0.2)
    for gate in (made.forget, made.enter):
        nn.init.zeros_(gate.weight)
    weights, gradients = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    state: State | None = None
    updated, _ = made(weights, gradients, torch.tensor(1.0), state)
    torch.testing.assert_close(updated, 0.9999 * weights - 0.2 * gradients)


def test_preprocessing() -> None:
    values = torch.tensor([2.0, -0.3, 1e-7, -1e-9, 0.0], dtype=torch.float64)
    expected = [plain_preprocess(value) for value in values.tolist()]
    np.testing.assert_allclose(preprocess(values).numpy(), expected, rtol=1e-12)
