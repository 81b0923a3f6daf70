"""What a training leaves in its folder: tensors with their identity, a log, and a lock while it runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from actstore.errors import DamagedError, InvalidInputError
from actstore.storage.atomic_file import FileLock, as_utf8, require_sound_copy, with_checksum, write_atomic
from actstore.storage.tensor_file import read_tensors, write_tensors
from predictor.protocol.calibration import CALIBRATION_FILES
from predictor.training.processes import Processes

MODEL, CHECKPOINT, LOG, CURVES = "model.safetensors", "checkpoint.safetensors", "log.csv", "curves.png"
STORE_NOTE = "store.json"  # where the activations lie
# what trainings may leave in a folder; a calibration is of the weights before
RUN_FILES = (MODEL, "model.json", CHECKPOINT, "checkpoint.json", LOG, CURVES, "head.safetensors", "weights.safetensors",
             STORE_NOTE, *CALIBRATION_FILES)  # fmt: skip
KIND = "training"
Kept = tuple[dict[str, Tensor], dict[str, Any]]  # tensors of a training, and what is said about them


@dataclass(frozen=True)
class Trained:
    """A finished training. figures: the last line of its log. history: all of them, where the model is in files of
    the trainee's own."""

    folder: Path
    tensors: dict[str, Tensor]
    identity: dict[str, Any]
    steps: int
    seconds: float
    figures: dict[str, float]
    history: list[dict[str, float]] = field(default_factory=list)


def read_trained(folder: Path, method: str, command: str) -> Trained:
    """A finished training of this method (`identity["method"]`). command: what to say it is trained with."""
    if not (folder / MODEL).exists():
        how = "is interrupted; the same command goes on" if (folder / CHECKPOINT).exists() else "is not there"
        raise InvalidInputError(f"{method} needs training, and {folder / MODEL} {how}: run `{command}`")
    trained = read_model(folder / MODEL)
    if (found := trained.identity.get("method")) != method:
        raise InvalidInputError(f"{folder / MODEL} must hold {method}, got {found}; choose another folder")
    return trained


def read_model(path: Path) -> Trained:
    return to_trained(path, *read_training(path))


def read_training(path: Path) -> Kept:
    require_sound_copy(path.with_suffix(".json"))
    return read_tensors(path, KIND, "train it again with --restart")


def write_training(path: Path, tensors: Mapping[str, Tensor], text: Mapping[str, Any]) -> None:
    """The text lies in the tensors' file, so that both are of the same step; for people also in a .json beside it."""
    write_atomic(path.with_suffix(".json"), as_utf8(json.dumps(with_checksum(text), indent=1, ensure_ascii=False)))
    write_tensors(path, KIND, tensors, text)


def remove_training(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(".json").unlink(missing_ok=True)


def is_finished(kept: Kept) -> bool:
    return "figures" in kept[1]


def to_trained(path: Path, tensors: dict[str, Tensor], text: Mapping[str, Any]) -> Trained:
    history = text.get("state", {}).get("history", [])
    try:
        return Trained(path.parent, tensors, text["identity"], text["steps"], text["seconds"], text["figures"], history)
    except KeyError as error:
        raise DamagedError(f"{path} is no finished training: it says nothing of {error}; train it again") from None


def share_kept(processes: Processes, kept: Kept | None) -> Kept | None:
    """What the first process gives, to all of them: the others need not see its folder."""
    from safetensors.torch import load, save

    if processes.count == 1:
        return kept
    tensors, text = kept or ({}, None)
    document = processes.from_first(json.dumps(text).encode())
    packed = processes.from_first(save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}))
    if processes.is_first:
        return kept
    text = json.loads(document)
    return None if text is None else (load(packed), text)


def write_log(folder: Path, history: Sequence[Mapping[str, float]]) -> None:
    """The whole file anew: a resumed run never leaves a line twice."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(history[0]) if history else ["step"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: f"{value:.8g}" for key, value in line.items()} for line in history)
    write_atomic(folder / LOG, out.getvalue().encode())


def read_log(folder: Path) -> list[dict[str, float]]:
    """Empty where there is none."""
    if not (folder / LOG).exists():
        return []
    with (folder / LOG).open(newline="") as file:
        return [{key: float(value) for key, value in line.items()} for line in csv.DictReader(file)]


def locked(folder: Path) -> FileLock:
    """One training per folder."""
    return FileLock(folder / "lock", f"another process is training in {folder}; wait for it to end, or stop it")


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
