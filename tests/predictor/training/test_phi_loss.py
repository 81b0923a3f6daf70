"""The loss in blocks of queries is the loss at once."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

import predictor.training.phi
from predictor.training.phi import category_loss

pytestmark = pytest.mark.numeric


def found(queries: torch.Tensor, parameters: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
    """Loss, gradient of the queries, gradient of the parameters; of a loss that is part of a larger term."""
    queries, parameters = (one.clone().requires_grad_() for one in (queries, parameters))
    loss = category_loss(queries, parameters, targets)
    (3 * loss).backward()
    assert queries.grad is not None
    assert parameters.grad is not None
    return [loss.detach(), queries.grad, parameters.grad]


@pytest.mark.parametrize("rows", [1, 4, 12])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-3)], ids=str)
def test_blocks_equal_the_whole(
    monkeypatch: pytest.MonkeyPatch, rows: int, dtype: torch.dtype, tolerance: float
) -> None:
    """13 queries of 17 categories, with logits so large that exponentials overflow where the maximum is not taken
    away. In float32 a logit of 500 is rounded by 5e-5 or so, and its exponential by that share."""
    random = torch.Generator().manual_seed(0)
    parameters = torch.randn((17, 6), generator=random, dtype=dtype)
    queries = 50 * torch.randn((13, 6), generator=random, dtype=dtype)
    targets = torch.randperm(17, generator=random)[:13]
    whole = found(queries, parameters, targets)
    monkeypatch.setattr(predictor.training.phi, "LOGIT_BYTES", 4 * 17 * rows)
    for one, other in zip(found(queries, parameters, targets), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * float(other.abs().max()))
    expected = cross_entropy(queries @ parameters.T, targets, reduction="sum") / 17
    torch.testing.assert_close(whole[0], expected, rtol=tolerance, atol=0)


def test_queries_without_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    parameters = torch.randn((7, 3), generator=random, dtype=torch.float64).requires_grad_()
    queries, targets = torch.randn((7, 3), generator=random, dtype=torch.float64), torch.arange(7)
    monkeypatch.setattr(predictor.training.phi, "LOGIT_BYTES", 1)
    category_loss(queries, parameters, targets).backward()  # type: ignore[no-untyped-call]
    in_blocks, parameters.grad = parameters.grad, None
    cross_entropy(queries @ parameters.T, targets).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(in_blocks, parameters.grad)
    assert queries.grad is None
