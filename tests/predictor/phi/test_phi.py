from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import actstore
from actstore.errors import InvalidInputError
from actstore.streams.sampling import plan_batch
from predictor.phi.network import FIRST_SCALE, LAYERS, Phi, PhiSpec, build_phi, unit
from predictor.protocol import PHI_KINDS as KINDS

pytestmark = pytest.mark.numeric


OPTIONS = [{}, {"input_norm": True}, {"bias": True}, {"input_norm": True, "bias": True}]


def random_rows(count: int, dim: int = 16, seed: int = 1) -> torch.Tensor:
    """Non-negative, of very different lengths."""
    random = torch.Generator().manual_seed(seed)
    return torch.rand(count, dim, generator=random) * torch.logspace(-2, 2, count)[:, None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS)
def test_untrained_it_is_the_cosine_prototype(kind: Any, options: dict[str, bool]) -> None:
    statistics, queries = random_rows(7), random_rows(5, seed=2)
    phi = Phi(PhiSpec(kind, 16, **options))
    prototype = statistics.double().numpy()
    prototype /= np.linalg.norm(prototype, axis=1, keepdims=True)
    np.testing.assert_allclose(phi(statistics).detach(), prototype, rtol=1e-5, atol=1e-7)
    cosines = queries.double().numpy() @ prototype.T
    np.testing.assert_allclose(phi.logits(phi(statistics), queries).detach(), cosines, rtol=1e-5)


@pytest.mark.parametrize("options", OPTIONS)
def test_two_layers_against_plain_numpy(make_phi: Callable[..., Phi], options: dict[str, bool]) -> None:
    phi, statistics = make_phi(**options).double(), random_rows(6).double()
    weights = {name: value.numpy() for name, value in phi.state_dict().items()}
    hidden = statistics.numpy()
    if options.get("input_norm"):
        hidden = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
    hidden = np.maximum(hidden @ weights["layers.0.weight"].T + weights.get("layers.0.bias", 0), 0)
    out = hidden @ weights["layers.1.weight"].T + weights.get("layers.1.bias", 0)
    np.testing.assert_allclose(phi(statistics), out / np.linalg.norm(out, axis=1, keepdims=True), rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS)
def test_parameters_have_unit_length(make_phi: Callable[..., Phi], kind: str, options: dict[str, bool]) -> None:
    parameters = make_phi(kind, **options)(random_rows(9))
    torch.testing.assert_close(parameters.norm(dim=1), torch.ones(9))


def test_a_statistic_of_zeros_gives_zeros_not_nan(make_phi: Callable[..., Phi]) -> None:
    assert torch.equal(make_phi(input_norm=True)(torch.zeros(2, 16)), torch.zeros(2, 16))
    assert torch.equal(unit(torch.zeros(3)), torch.zeros(3))


@pytest.mark.parametrize("kind", KINDS)
def test_without_biases_the_input_norm_changes_nothing(make_phi: Callable[..., Phi], kind: str) -> None:
    rows = random_rows(9).double()
    torch.testing.assert_close(make_phi(kind, input_norm=True).double()(rows), make_phi(kind).double()(rows))


def test_with_biases_the_input_norm_matters(make_phi: Callable[..., Phi]) -> None:
    rows = random_rows(9)
    difference = make_phi(bias=True, input_norm=True)(rows) - make_phi(bias=True)(rows)
    assert difference.abs().max() > 0.05


@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 50), kind=st.sampled_from(KINDS))
def test_without_biases_it_is_positively_homogeneous(scale: float, seed: int, kind: Any) -> None:
    phi, rows = Phi(PhiSpec(kind, 8)).double(), random_rows(4, 8, seed).double()
    with torch.no_grad():
        for parameter in phi.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    torch.testing.assert_close(phi(scale * rows), phi(rows), rtol=1e-9, atol=1e-9)


def test_unit_queries_are_scaled_by_a_learnt_number() -> None:
    phi, queries = Phi(PhiSpec("phi1", 16, query_norm=True)).double(), random_rows(5).double()
    parameters = phi(random_rows(3, seed=4).double())
    logits = phi.logits(parameters, queries)
    expected = 10 * unit(queries) @ parameters.T
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(phi.logits(parameters, 70 * queries), logits)
    logits.sum().backward()  # type: ignore[no-untyped-call]
    assert phi.scale is not None
    assert phi.scale.item() == FIRST_SCALE == 10
    assert phi.scale.grad is not None
    torch.testing.assert_close(phi.scale.grad, expected.sum().detach() / 10)


def test_raw_queries_bring_their_own_temperature(make_phi: Callable[..., Phi]) -> None:
    phi, queries = make_phi().double(), random_rows(5).double()
    assert phi.scale is None
    parameters = phi(random_rows(3, seed=4).double())
    torch.testing.assert_close(phi.logits(parameters, 3 * queries), 3 * phi.logits(parameters, queries))


@pytest.mark.parametrize(("arguments", "message"), [(("phi3", 16), "phi must be one of phi1"), (("phi1", 0), "dim")])
def test_specs_are_checked(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        PhiSpec(*arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_built_from_its_tensors_it_is_the_same_and_frozen(make_phi: Callable[..., Phi], kind: str) -> None:
    phi, rows = make_phi(kind, bias=True, query_norm=True), random_rows(3)
    assert len(phi.layers) == LAYERS[kind]
    again = build_phi(phi.spec.to_json(), phi.state_dict())
    assert torch.equal(again(rows), phi(rows))
    assert again.spec == phi.spec
    assert not any(parameter.requires_grad for parameter in again.parameters())


@pytest.mark.parametrize("change", ["missing", "shape", "extra"])
def test_tensors_of_another_phi_are_refused(make_phi: Callable[..., Phi], change: str) -> None:
    phi = make_phi()
    tensors = dict(phi.state_dict())
    if change == "missing":
        del tensors["layers.1.weight"]
    elif change == "shape":
        tensors["layers.0.weight"] = torch.zeros(15, 16)
    else:
        tensors["scale"] = torch.tensor(1.0)
    with pytest.raises(InvalidInputError, match="weights of phi2 must have the shapes"):
        build_phi(phi.spec.to_json(), tensors)


def test_for_a_linear_phi_the_mean_of_scores_is_the_score_of_the_mean(
    store: actstore.ActivationStore, make_phi: Callable[..., Phi]
) -> None:
    """Equation 2 by drawing statistic sets S as in training, against the shortcut of Equation 7.

    It is exact for the linear layer alone. phi also normalises its output, which is not linear: there the
    shortcut is an approximation (the paper uses it for phi2 too), close as long as a class's rows are.
    """
    train, sets = store["train"], 2000
    labels = np.arange(10)
    phi, query = make_phi("phi1"), torch.from_numpy(store["val"].take([0])).double()
    layer = phi.layers[0].get_parameter("weight").double()
    rows, means = torch.from_numpy(train.take(np.arange(len(train)))), torch.from_numpy(train.means())
    drawn = torch.empty(sets, 10, 16)
    for step in range(sets):
        plan = plan_batch(train.class_index, labels, seed=3, step=step, p_mean=0.4)
        use_mean = torch.from_numpy(plan.use_mean)[:, None]
        drawn[step] = torch.where(use_mean, means, rows[torch.from_numpy(plan.statistic_rows)])
    each = (drawn.double() @ layer.T) @ query[0]  # (sets, class): Phi s_y . a(x)
    shortcut = means.double() @ layer.T @ query[0]
    error = each.std(0) / sets**0.5
    assert ((each.mean(0) - shortcut).abs() < 5 * error).all()
    assert (error < 0.02 * shortcut).all()  # or the line above would say little

    normalised = phi(drawn.reshape(-1, 16)).reshape(sets, 10, 16)
    scores = normalised.double() @ query[0]
    gap = (scores.mean(0) - phi(means).double() @ query[0]).abs()
    assert (gap > 5 * scores.std(0) / sets**0.5).any()  # no longer the same …
    cosine = torch.cosine_similarity(normalised.mean(0), phi(means))
    assert (cosine > 0.99).all()  # … but close


def test_the_gradient_of_unit_rows_against_finite_differences() -> None:
    rows = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(unit, rows)
