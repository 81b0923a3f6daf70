"""Tensors in .pt and .pth files as sources of rows; nothing but tensors and lists of text is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from actstore.storage.torch_file import read_torch_file
from actstore.tables.row_source import block_rows

_ADVICE = "save a tensor, or a dict of tensors, with torch.save"


class TensorRows:
    """A two-dimensional tensor of any real type and layout in memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.shape = (tensor.shape[0], tensor.shape[1])
        self.dtype = as_array(self._tensor[:0]).dtype

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        step = block_rows(self.shape[1], self.dtype)
        for position in range(start, stop, step):
            yield as_array(self._tensor[position : min(position + step, stop)])


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """numpy has no bfloat16; fp32 holds all of its values."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def read_tensor_file(path: Path) -> dict[str, torch.Tensor | NDArray[Any]]:
    """Name -> tensor, or text; a tensor alone is called activations."""
    contents = read_torch_file(path, _ADVICE, mapped=True)
    if isinstance(contents, torch.Tensor):
        contents = {"activations": contents}
    if not isinstance(contents, Mapping):
        raise InvalidInputError(f"{path} holds a {type(contents).__name__}; {_ADVICE}")
    single = (str, int, float, type(None))  # an epoch or a remark is no array
    return {str(name): _parse(one, name, path) for name, one in contents.items() if not isinstance(one, single)}


def _parse(value: Any, name: Any, path: Path) -> torch.Tensor | NDArray[Any]:
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return np.array(value, dtype=object)
    if isinstance(value, list | tuple) and all(isinstance(one, int) for one in value):
        return np.array(value, np.int64)
    if not isinstance(value, torch.Tensor) or value.is_sparse or value.is_quantized or value.is_complex():
        raise InvalidInputError(
            f"{name!r} in {path} is a {type(value).__name__} that holds no plain numbers; {_ADVICE}"
        )
    return value.detach()
