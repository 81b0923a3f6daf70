"""Files of named tensors with a JSON description inside: safetensors, written atomically, never a pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from actstore.errors import DamagedError, InvalidInputError
from actstore.files import write_atomic

_KEY = "actstore"


def write_tensors(path: Path, kind: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """One file for both, so that tensors and description can never be of different moments."""
    from safetensors.torch import save

    text = json.dumps({"kind": kind, **about}, ensure_ascii=False)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, save(plain, {_KEY: text}))


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and description of a file that `write_tensors` wrote as this kind."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    if not path.is_file():
        raise InvalidInputError(f"no {kind} at {path}")
    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(_KEY)
        tensors = load_file(path)
    except SafetensorError as error:
        # a pickle ends up here too: it is never opened as one, since opening a pickle can run what is in it
        raise DamagedError(f"{path} is damaged or no safetensors file ({error}); expected a {kind}") from error
    about = _parse(text)
    if about.get("kind") != kind:
        raise InvalidInputError(f"{path} must be a {kind}, got {_article(about.get('kind'))}")
    return tensors, about


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _parse(text: str | None) -> dict[str, Any]:
    """Empty where others wrote the file, or this library something else."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _article(kind: Any) -> str:
    return f"a {kind}" if kind else "a safetensors file of something else"
