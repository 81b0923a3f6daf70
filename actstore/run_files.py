"""What a training leaves in its folder: tensors with their identity, and a log."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from actstore.checksum import require_sound_copy
from actstore.errors import DamagedError, InvalidInputError
from actstore.files import write_atomic
from actstore.processes import Processes
from actstore.tensorfile import read_tensors, write_tensors

MODEL, READABLE, CHECKPOINT, LOG = "model.safetensors", "model.json", "checkpoint.safetensors", "log.csv"
KIND = "training"
Tensors = dict[str, Tensor]
Kept = tuple[Tensors, dict[str, Any]]  # tensors of a training, and what is said about them
Figures = dict[str, float]


@dataclass(frozen=True)
class Trained:
    """A finished training. figures: the last line of its log."""

    folder: Path
    tensors: Tensors
    identity: dict[str, Any]
    steps: int
    seconds: float
    figures: Figures


def read_trained(folder: Path, method: str, command: str) -> Trained:
    """A finished training of this method (`identity["method"]`). command: what to say it is trained with."""
    if not (folder / MODEL).exists():
        how = "is interrupted; the same command goes on" if (folder / CHECKPOINT).exists() else "is not there"
        raise InvalidInputError(f"{method} needs training, and {folder / MODEL} {how}: run `{command}`")
    trained = read_model(folder / MODEL)
    if (found := trained.identity.get("method")) != method:
        raise InvalidInputError(f"{folder / MODEL} must hold {method}, got {found}; choose another folder")
    return trained


def write_training(path: Path, tensors: Mapping[str, Tensor], text: Mapping[str, Any]) -> None:
    write_tensors(path, KIND, tensors, text)


def read_training(path: Path) -> Kept:
    return read_tensors(path, KIND, "train it again with --restart")


def read_model(path: Path) -> Trained:
    require_sound_copy(path.with_name(READABLE))
    return to_trained(path, *read_training(path))


def to_trained(path: Path, tensors: Tensors, text: Mapping[str, Any]) -> Trained:
    try:
        return Trained(path.parent, tensors, text["identity"], text["steps"], text["seconds"], text["figures"])
    except KeyError as error:
        raise DamagedError(f"{path} is no finished training: it says nothing of {error}; train it again") from None


def share_kept(processes: Processes, kept: Kept | None) -> Kept | None:
    """What the first process gives, to all of them: the others need not see its folder."""
    from safetensors.torch import load, save

    if processes.count == 1:
        return kept
    tensors, text = kept or ({}, None)
    told = processes.hear_first(json.dumps(text).encode())
    packed = processes.hear_first(save({name: one.cpu().contiguous() for name, one in tensors.items()}))
    if processes.is_first:
        return kept
    text = json.loads(told)
    return None if text is None else (load(packed), text)


def write_log(path: Path, history: Sequence[Mapping[str, float]]) -> None:
    """The whole file anew: a resumed run never leaves a line twice."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(history[0]) if history else ["step"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: f"{value:.8g}" for key, value in line.items()} for line in history)
    write_atomic(path, out.getvalue().encode())


def optimiser_state(optimiser: torch.optim.Optimizer, module: nn.Module) -> Tensors:
    """Momenta and the like, named after their parameters: for `Trainee.state`."""
    return {
        f"optimiser.{key}.{name}": value
        for name, parameter in module.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `optimiser_state`; other tensors are left alone."""
    for name, parameter in module.named_parameters():
        for full, value in tensors.items():
            _, _, rest = full.partition("optimiser.")
            key, _, owner = rest.partition(".")
            if owner == name:
                like = torch.empty_like(parameter.detach()) if value.shape == parameter.shape else value.clone()
                optimiser.state[parameter][key] = like.copy_(value)
