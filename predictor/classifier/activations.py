"""Activations that a user hands over: lists, arrays or tensors, checked."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.spec import is_unicode


def parse_examples(name: str, values: ArrayLike | Tensor, dim: int) -> Tensor:
    """(n, dim) float32 in memory of its own: the caller may go on with theirs."""
    if not isinstance(name, str) or not name:
        raise InvalidInputError(f"a category needs a name, got {name!r}")
    if not is_unicode(name):
        raise InvalidInputError(f"the name of category {name!r} is not valid Unicode text; give it another")
    examples = parse_activations(f"category {name!r}", values, dim)
    if not len(examples):
        raise InvalidInputError(f"category {name!r} has no support; give at least one example")
    return examples.clone()


def parse_activations(what: str, values: ArrayLike | Tensor, dim: int) -> Tensor:
    """(n, dim) float32 of (n, dim) or (dim,); what: their name in a message."""
    try:
        with np.errstate(over="ignore"):  # an infinity is refused below
            tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values, np.float32))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{what}: expected activations (n, {dim}), got no array: {error}") from None
    tensor = tensor.detach().float()
    tensor = tensor[None] if tensor.ndim == 1 else tensor
    if tensor.ndim != 2 or tensor.shape[1] != dim:
        raise InvalidInputError(f"{what}: expected activations (n, {dim}), got {tuple(tensor.shape)}")
    if not torch.isfinite(tensor).all():
        raise InvalidInputError(f"{what}: activations must be finite, got a NaN or an infinity")
    return tensor
