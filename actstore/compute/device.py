"""Which device to compute on: asked for and absent is an error, never silently another one."""

from __future__ import annotations

import torch

from actstore.errors import InvalidInputError

DEVICES = ("auto", "cpu", "cuda", "mps")


def parse_device(name: str) -> torch.device:
    """auto: the GPU where there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    kind = name.split(":")[0]
    if kind == "cuda" and not torch.cuda.is_available():
        raise InvalidInputError("device cuda was asked for, but torch finds no CUDA device; use --device cpu")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise InvalidInputError("device mps was asked for, but torch finds none; use --device cpu")
    if kind not in DEVICES:
        raise InvalidInputError(f"device must be one of {', '.join(DEVICES)}, got {name!r}")
    return torch.device(name)
