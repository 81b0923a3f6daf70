"""The loss of Equation 3: every query among all categories, in blocks of queries where they are many."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

LOGIT_BYTES = 1 << 28  # of one block of logits; torch's cross entropy holds three times as much


def category_loss(queries: Tensor, parameters: Tensor, targets: Tensor) -> Tensor:
    """(m, dim), (n, dim) and (m,) -> the queries' share of the mean over n: the sum of their losses / n.

    m is n, or less where several processes share the queries. Up to LOGIT_BYTES of logits are computed as one;
    above, 21,000 x 21,000 of them would take 1.8 GB, and 5.3 GB with their gradient.
    """
    rows = max(1, LOGIT_BYTES // (4 * len(parameters)))
    if len(queries) > rows:
        loss: Tensor = _InBlocks.apply(queries, parameters, targets, rows)  # type: ignore[no-untyped-call]
        return loss
    logits = torch.mm(queries, parameters.T)  # (m, n)
    return cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), targets) * (
        len(queries) / len(parameters)
    )


class _InBlocks(torch.autograd.Function):
    """Finds the gradients on the way, while the logits of a block are at hand: the same three products as at once."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, parameters: Tensor, targets: Tensor, rows: int) -> Tensor:
        precise = torch.float64 if queries.dtype == torch.float64 else torch.float32
        of_parameters = torch.zeros_like(parameters, dtype=precise)
        of_queries = torch.empty_like(queries) if ctx.needs_input_grad[0] else None
        loss = torch.zeros((), dtype=precise, device=queries.device)
        for start in range(0, len(queries), rows):
            part = slice(start, start + rows)
            own, right = queries[part], targets[part, None]
            slopes = torch.mm(own, parameters.T).to(precise)  # (rows, n) logits, then their gradient, in one memory
            slopes -= slopes.amax(1, keepdim=True)
            of_right = slopes.gather(1, right)
            totals = slopes.exp_().sum(1, keepdim=True)
            loss += (totals.log() - of_right).sum()
            slopes /= totals
            slopes.scatter_add_(1, right, slopes.new_full(right.shape, -1.0))
            of_parameters += torch.mm(slopes.T, own)
            if of_queries is not None:
                of_queries[part] = torch.mm(slopes, parameters)
        ctx.gradients = (of_queries, of_parameters.to(parameters.dtype))
        ctx.n_class = len(parameters)
        return loss / len(parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        of_queries, of_parameters = ctx.gradients
        factor = gradients[0] / ctx.n_class
        return None if of_queries is None else of_queries * factor, of_parameters * factor, None, None
