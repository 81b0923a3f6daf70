"""Files of tensors: safetensors with a JSON description inside, written atomically; those of torch.save are only read,
and without running code."""

from __future__ import annotations

import json
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actstore.errors import DamagedError, InvalidInputError
from actstore.storage.atomic_file import as_utf8, write_atomic
from actstore.storage.checksum import FIELD, require_header, seal_header

_KEY = "actstore"
# Whatever a file that is no checkpoint makes torch.load stumble over.
DAMAGE = (RuntimeError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError, AssertionError)


def write_tensors(path: Path, kind: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """One file for both, so that tensors and description can never be of different moments."""
    text = json.dumps({"kind": kind, **about}, ensure_ascii=False)
    save_tensors(path, tensors, {_KEY: as_utf8(text).decode()})


def read_tensors(path: Path, kind: str, remedy: str = "make it again") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and description of a file that `write_tensors` wrote as this kind. remedy: if it is damaged."""
    if not path.is_file():
        raise InvalidInputError(f"no {kind} at {path}")
    tensors, metadata = load_tensors(path, f"expected a {kind}; {remedy}")
    about = _parse(metadata.get(_KEY))
    if about.get("kind") != kind:
        other = about.get("kind") or "safetensors file of something else"
        raise InvalidInputError(f"{path} must be a {kind}, got a {other}")
    return tensors, about


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file with a checksum of all of it in its metadata."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, *seal_header(save(plain), metadata))


def load_tensors(path: Path, remedy: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of any safetensors file; refused where it is damaged or holds a NaN or an infinity.

    remedy: what a message ends with.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    require_header(path, remedy)
    try:
        with safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
        tensors = load_file(path)
    except SafetensorError as error:
        # a pickle ends up here too: it is never opened as one, since opening a pickle can run what is in it
        raise DamagedError(f"{path} is damaged or no safetensors file ({error}); {remedy}") from error
    metadata.pop(FIELD, None)
    require_finite(path, tensors, remedy)
    return tensors, metadata


def require_finite(path: Path, tensors: Mapping[str, Tensor], remedy: str) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise DamagedError(f"{path} is damaged: {name} holds a NaN or an infinity; {remedy}")


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _parse(text: str | None) -> dict[str, Any]:
    """Empty where others wrote the file, or this library something else."""
    try:
        about = json.loads(text or "{}")
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}


def read_torch_file(path: Path, advice: str, mapped: bool = False) -> Any:
    """What a file holds, on the CPU; anything but tensors and plain containers is refused.

    mapped: leave tensors in the file until they are touched, where its format allows that.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about the pickle's protocol; what matters is raised
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped and _is_zip(path))
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL (\w+\.[\w.]+)", str(error))
        what = f"the object {refused[1]!r}" if refused else "something else, or is damaged"
        raise InvalidInputError(f"{path} must hold tensors only, but holds {what}; {advice}") from error
    except DAMAGE as error:
        raise InvalidInputError(
            f"{path} is damaged or no file of torch.save ({type(error).__name__}); {advice}"
        ) from error


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"
