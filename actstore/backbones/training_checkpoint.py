"""Checkpoints of a training: all it takes to go on as if nothing had happened, in one atomic file and no pickle."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from actstore.checksum import require_sound_copy, sealed
from actstore.errors import DamagedError, InvalidInputError, LockedError
from actstore.files import storage_errors, write_atomic
from actstore.tensorfile import load_tensors, save_tensors

TENSORS, READABLE = "checkpoint.safetensors", "checkpoint.json"
_MODEL, _MOMENTUM = "model.", "momentum."


@dataclass
class TrainingState:
    """How far a training is. epoch and step: of the next batch. The sums are of the epoch under way."""

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    correct: float = 0.0
    images: float = 0.0
    epoch_seconds: float = 0.0
    seconds: float = 0.0
    scaler: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)  # one row of the log per epoch

    def end_epoch(self, rate: float, steps: int, top1: float, top5: float) -> None:
        """Add a row to the history, and begin the next epoch."""
        self.epoch += 1
        row = {
            "epoch": self.epoch,
            "step": self.epoch * steps,
            "lr": rate,
            "train_loss": self.loss_sum / max(1.0, self.images),
            "train_top1": self.correct / max(1.0, self.images),
            "val_top1": top1,
            "val_top5": top5,
            "images_per_second": self.images / max(1e-9, self.epoch_seconds),
            "seconds": self.seconds,
        }
        self.history.append(row)
        self.step, self.loss_sum, self.correct, self.images, self.epoch_seconds = 0, 0.0, 0.0, 0.0, 0.0

    def best(self) -> dict[str, Any]:
        """The row of the highest top-1; the first of equals."""
        return max(self.history, key=lambda row: row["val_top1"])


def save_checkpoint(
    folder: Path, identity: Mapping[str, Any], state: TrainingState, network: nn.Module, optimiser: torch.optim.SGD
) -> None:
    """The tensors' file also carries the state, so that the two can never be of different steps."""
    tensors = {_MODEL + name: tensor for name, tensor in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        if (buffer := optimiser.state[parameter].get("momentum_buffer")) is not None:
            tensors[_MOMENTUM + name] = buffer
    text = json.dumps({"identity": identity, "state": asdict(state)}, ensure_ascii=False)
    save_tensors(folder / TENSORS, tensors, {"training": text})
    write_atomic(folder / READABLE, json.dumps(sealed(json.loads(text)), indent=1, ensure_ascii=False).encode())


def load_checkpoint(
    folder: Path, identity: Mapping[str, Any], network: nn.Module, optimiser: torch.optim.SGD
) -> TrainingState | None:
    """Fills network and optimiser; None where there is no checkpoint. One of another training is refused."""
    path = folder / TENSORS
    if not path.exists():
        return None
    require_sound_copy(folder / READABLE)
    tensors, written = _read(path)
    refuse_other_training(path, written["identity"], identity)
    network.load_state_dict(_below(tensors, _MODEL))  # copies into place: memory formats and devices stay
    buffers = _below(tensors, _MOMENTUM)
    for name, parameter in network.named_parameters():
        if name in buffers:
            optimiser.state[parameter]["momentum_buffer"] = torch.empty_like(parameter.detach()).copy_(buffers[name])
    return TrainingState(**written["state"])


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, metadata = load_tensors(path, "use --restart")
    try:
        written: dict[str, Any] = json.loads(metadata["training"])
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{path} is damaged or no checkpoint of `ppa pretrain` ({error}); use --restart") from error
    return tensors, written


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def refuse_other_training(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Name what differs between the training of a checkpoint and the one that wants to resume it."""
    now = json.loads(json.dumps(now))  # as it would be read back: tuples become lists
    differences = [
        _difference(part, before.get(part), value) for part, value in now.items() if before.get(part) != value
    ]
    if differences:
        raise InvalidInputError(
            f"{path} belongs to another training: {'; '.join(differences)}; "
            "repeat the options of that one, choose another --out, or discard it with --restart"
        )


def _difference(part: str, before: Any, now: Any) -> str:
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return f"its {part} differs"
    changed = [key for key in now if before.get(key) != now[key]]
    return "; ".join(f"{part} {_short(key, before.get(key), now[key])}" for key in changed)


def _short(key: str, before: Any, now: Any) -> str:
    name = key.replace("_", " ")
    if _are_names(now) and _are_names(before or []):
        known, fresh = set(before or ()), set(now)
        if len(known) != len(fresh):
            return f"{name} was {len(known):,} classes, is {len(fresh):,}"
        other = min(fresh - known, default=None)
        return f"{name} is in another order" if other is None else f"{name} has {other!r}, which it did not"
    return f"{name} was {before}, is {now}"


def _are_names(value: Any) -> bool:
    """Class names; other lists, such as the widths of phi's layers, are told as they are."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One training per folder; a killed process lets go."""
    path = folder / "lock"
    with storage_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"another process is training in {folder}; wait for it to end, or stop it") from None
        yield
    finally:
        os.close(descriptor)
