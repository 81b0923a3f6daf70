"""What a training leaves in its folder: tensors with their identity, and a log."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from actstore.errors import DamagedError, InvalidInputError
from actstore.files import write_atomic
from actstore.tensorfile import read_tensors, write_tensors

MODEL, READABLE, CHECKPOINT, LOG = "model.safetensors", "model.json", "checkpoint.safetensors", "log.csv"
KIND = "training"
Tensors = dict[str, Tensor]
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


def read_training(path: Path) -> tuple[Tensors, dict[str, Any]]:
    return read_tensors(path, KIND)


def read_model(path: Path) -> Trained:
    tensors, text = read_training(path)
    try:
        return Trained(path.parent, tensors, text["identity"], text["steps"], text["seconds"], text["figures"])
    except KeyError as error:
        raise DamagedError(f"{path} is no finished training: it says nothing of {error}; train it again") from None


def write_log(path: Path, history: Sequence[Mapping[str, float]]) -> None:
    """The whole file anew: a resumed run never leaves a line twice."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(history[0]) if history else ["step"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: f"{value:.8g}" for key, value in line.items()} for line in history)
    write_atomic(path, out.getvalue().encode())
