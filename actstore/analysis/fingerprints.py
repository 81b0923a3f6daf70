"""A key for a cache of activations, which changes whenever the network, the preprocessing or the images do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actstore.errors import InvalidInputError
from actstore.split import Split

_VERSION = 1


def fingerprint(model: Any, transform: Any = None, source: Any = None) -> str:
    """`sha256:…` of a network, of what is done to images before it, and of where they come from.

    Each may be text, numbers, lists, dicts, dataclasses, arrays, a torch module or tensor (all weights count), a Path
    (the content of a file, or of all files of a folder) or a split (its content). Anything else counts by its repr,
    such as a transform of torchvision; a repr that names an address in memory is refused: it is new in every process.
    """
    described = [_VERSION, *(_describe(part, name) for part, name in
                             ((model, "model"), (transform, "transform"), (source, "source")))]  # fmt: skip
    return "sha256:" + hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _describe(value: Any, where: str) -> Any:
    """As JSON, every kind marked so that no two kinds of value look alike."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.generic):
        return {"number": repr(value.item() if isinstance(value, np.generic) else value)}
    if isinstance(value, bytes):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, Split):
        return {"split": value.content}
    if isinstance(value, np.ndarray):
        data = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()
        return {"array": [value.dtype.str, list(value.shape), data]}
    if isinstance(value, Mapping):
        pairs = [[_describe(key, where), _describe(part, f"{where}[{key!r}]")] for key, part in value.items()]
        return {"mapping": sorted(pairs, key=lambda pair: json.dumps(pair[0], sort_keys=True))}
    if isinstance(value, Sequence):
        return {"list": [_describe(part, f"{where}[{number}]") for number, part in enumerate(value)]}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: _describe(getattr(value, each.name), f"{where}.{each.name}") for each in fields(value)}
        return {"dataclass": [type(value).__qualname__, parts]}
    if hasattr(value, "__fspath__"):
        return {"files": _files(Path(value), where)}
    return _describe_object(value, where)


def _describe_object(value: Any, where: str) -> Any:
    """Modules and tensors of torch, and whatever has a repr that is the same tomorrow."""
    if hasattr(value, "state_dict") and hasattr(value, "named_modules"):
        weights = {name: _describe(tensor, f"{where}.{name}") for name, tensor in value.state_dict().items()}
        return {"module": [_stable_repr(value, where), weights]}
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        plain = value.detach().cpu().contiguous()
        data = hashlib.sha256(plain.flatten().view(_torch().uint8).numpy().data).hexdigest()
        return {"tensor": [str(plain.dtype), list(plain.shape), data]}
    return {"object": _stable_repr(value, where)}


def _torch() -> Any:
    import torch

    return torch


def _stable_repr(value: Any, where: str) -> str:
    text = repr(value)
    if " at 0x" in text:
        raise InvalidInputError(
            f"{where} is {text}, which says nothing that holds in another process; give its settings, such as a dict"
        )
    return text


def _files(path: Path, where: str) -> list[list[str]]:
    """Name and sha256 of a file, or of every file below a folder."""
    if not path.exists():
        raise InvalidInputError(f"{where} is {path}, which does not exist")
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    named = [(file.relative_to(path).as_posix() if path.is_dir() else "", file) for file in files]
    return [[name, _digest(file)] for name, file in named]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
