"""The training loop: steps, a log, checkpoints, and exact resumption after a kill, in a folder per training.

    class Embedding(Trainee):
        def __init__(self): self.module, self.optimiser = ...
        def step(self, number): ...      # learn from batch `number`; return figures, such as {"loss": 0.3}

    trained = train(folder, identity, lambda: Embedding(config, split), steps=1000)
    trained = read_trained(folder, "triplet", "ppa baseline triplet")     # later, or elsewhere

FOLDER holds model.safetensors (the tensors to keep, and the identity of the run in its metadata), model.json (the same
identity and figures, for people), log.csv (a line per `every` steps), curves.png where the trainee has some, and
checkpoint.safetensors until the run is finished. SIGINT and SIGTERM end it after the step under way, with a checkpoint.

Several processes may train one model (processes.py): all call `train`, their trainees end every step with the same
weights and figures, and the first alone measures and writes.
"""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actstore.compute.process import Interruption, noted_signals
from actstore.errors import DamagedError, DivergedError, InvalidInputError
from actstore.storage.atomic_file import FileLock, as_utf8, require_sound_copy, with_checksum, write_atomic
from actstore.storage.tensor_file import read_tensors, write_tensors
from predictor.protocol.calibration import CALIBRATION_FILES
from predictor.training.processes import Processes
from predictor.training.trainee import Figures, Trainee, draw_curves

MODEL, CHECKPOINT, LOG, CURVES = "model.safetensors", "checkpoint.safetensors", "log.csv", "curves.png"
STORE_NOTE = "store.json"  # where the activations lie
# what trainings may leave in a folder; a calibration is of the weights before
RUN_FILES = (MODEL, "model.json", CHECKPOINT, "checkpoint.json", LOG, CURVES, "head.safetensors", "weights.safetensors",
             STORE_NOTE, *CALIBRATION_FILES)  # fmt: skip
KIND = "training"
Kept = tuple[dict[str, Tensor], dict[str, Any]]  # tensors of a training, and what is said about them
Report = Callable[[int, int, Figures], None]  # steps done, steps in all, the newest figures
SECONDS_PER_DRAWING = 30.0  # of curves.png


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


@dataclass(frozen=True)
class RunOptions:
    """What does not change the outcome."""

    checkpoint_seconds: float = 15.0
    restart: bool = False


def train(
    folder: Path, identity: Mapping[str, Any], make: Callable[[], Trainee], steps: int, every: int = 100,
    options: RunOptions = RunOptions(), report: Report | None = None,  # noqa: B008 - frozen
    processes: Processes = Processes(), products: Sequence[str] = (),  # noqa: B008 - frozen
) -> Trained:  # fmt: skip
    """Train, or go on with what is in the folder; a finished training of the same identity is only read.

    identity: all that decides the outcome, in parts that are mappings, such as {"config": {"lr": 0.1}, "split": {…}}.
    products: files of the trainee's own, which a restart discards as well.
    """
    identity = {**identity, "run": {"steps": steps, "every": every}}
    taken = f"another process is training in {folder}; wait for it to end, or stop it"
    with FileLock(folder / "lock", taken) if processes.is_first else nullcontext():
        if options.restart and processes.is_first:
            discard(folder, products)
        kept = processes.from_first(_kept(folder, identity) if processes.is_first else None)  # nobody else need see it
        if kept is None or "figures" not in kept[1]:  # not finished
            run = _Run(folder, identity, make(), steps, every, processes)
            if kept is not None:
                run.resume(kept)
            with noted_signals() as interruption:
                run.learn(options, report or (lambda done, total, figures: None), interruption)
                # still noting signals: all steps are done, and their results are written before it ends
                kept = processes.from_first(run.finish() if processes.is_first else None)
        assert kept is not None
        return to_trained(folder / MODEL, *kept)


def discard(folder: Path, products: Sequence[str]) -> None:
    """The training in this folder, with the files that it leaves beside its own."""
    for name in (MODEL, CHECKPOINT):
        remove_training(folder / name)
    for name in (LOG, CURVES, *products):
        (folder / name).unlink(missing_ok=True)


def _kept(folder: Path, identity: Mapping[str, Any]) -> Kept | None:
    """The finished training in the folder, or its last checkpoint."""
    path = next((path for path in (folder / MODEL, folder / CHECKPOINT) if path.exists()), None)
    if path is None:
        return None
    kept = read_training(path)
    if path.name == MODEL:
        to_trained(path, *kept)  # refuses what is not whole
    refuse_other_training(path, kept[1]["identity"], identity)
    return kept


STATE = ("step", "seconds", "line_began", "sums", "history")  # of a run, in its checkpoint


@dataclass
class _Run:
    """A training under way, and how far it is; of several processes only the first writes.

    sums and line_began (in seconds of the training): of the line of the log under way.
    """

    folder: Path
    identity: Mapping[str, Any]
    trainee: Trainee
    steps: int
    every: int
    processes: Processes
    step: int = 0
    seconds: float = 0.0
    line_began: float = 0.0
    sums: Figures = field(default_factory=dict)
    history: list[Figures] = field(default_factory=list)
    drawn: float = field(default_factory=time.monotonic)

    def resume(self, checkpoint: Kept) -> None:
        tensors, written = checkpoint
        self.trainee.restore(tensors)
        for name in STATE:
            setattr(self, name, written["state"][name])

    def learn(self, options: RunOptions, report: Report, interruption: Interruption) -> None:
        """All steps that are left."""
        trainee, processes = self.trainee, self.processes
        began, saved, unread = time.monotonic() - self.seconds, time.monotonic(), list[Mapping[str, float | Tensor]]()
        is_over = trainee.has_converged
        while self.step < self.steps and not is_over:
            unread.append(trainee.step(self.step))
            self.step += 1
            ends_line = self.step % self.every == 0 or self.step == self.steps
            if not ends_line and self.step % trainee.steps_per_reading:
                continue
            figures = self.read(unread)
            self.seconds = time.monotonic() - began
            if ends_line:
                figures = self.end_line()
                self.line_began = self.seconds = time.monotonic() - began  # what was measured counts for no line
            report(self.step, self.steps, figures)
            is_over, is_asked = processes.any(trainee.has_converged, interruption.is_asked)
            if is_asked or time.monotonic() - saved >= options.checkpoint_seconds:
                self.save()
                saved = time.monotonic()
            if is_asked:
                processes.wait()  # for the checkpoint: torchrun ends all as soon as one has ended
                raise KeyboardInterrupt

    def read(self, unread: list[Mapping[str, float | Tensor]]) -> Figures:
        """Into the sums of the line, in order: it does not matter how often they are read. Returns the newest."""
        figures: Figures = {}
        columns = {key: to_floats([waiting[key] for waiting in unread]) for key in unread[0]}
        for place in range(len(unread)):
            figures = {key: values[place] for key, values in columns.items()}
            self._refuse_divergence(figures)  # before a checkpoint could keep it
            for key, value in figures.items():
                self.sums[key] = self.sums.get(key, 0.0) + value
        unread.clear()
        return figures

    def end_line(self) -> Figures:
        count = (self.step - 1) % self.every + 1  # the last line may be of fewer steps
        line = self.trainee.line(self.step, self.sums, count, self.seconds - self.line_began)
        self.sums = {}
        if self.processes.is_first:
            line |= self.trainee.measure()
            self._refuse_divergence(line)
            self._refuse_divergence(largest(self.trainee.weights()))
            self.history.append({**line, "seconds": self.seconds})
            write_log(self.folder, self.history)
            self.trainee.after_line(self.folder, self.history)
            if time.monotonic() - self.drawn > SECONDS_PER_DRAWING:
                self._draw()
        return _without_counts(line)

    def save(self, **text: Any) -> None:
        """A checkpoint. text: what is said of a training that is finished."""
        if self.processes.is_first:
            state = {name: getattr(self, name) for name in STATE}
            self._write(CHECKPOINT, self.trainee.state(), {"identity": self.identity, **text, "state": state})

    def finish(self) -> Kept:
        model, figures = self.trainee.model(), _without_counts(self.history[-1] if self.history else {})
        text = {"steps": self.step, "seconds": self.seconds, "figures": figures}
        write_log(self.folder, self.history)
        self._draw()
        self.trainee.keep(self.folder)
        if model is None:  # the checkpoint stays, and says last that the trainee's own files are whole
            self.save(**text)
            return read_training(self.folder / CHECKPOINT)
        self._write(MODEL, model, {"identity": self.identity, **text})  # last: it says that all is there
        remove_training(self.folder / CHECKPOINT)
        return read_training(self.folder / MODEL)

    def _write(self, name: str, tensors: Mapping[str, Tensor], text: Mapping[str, Any]) -> None:
        self._refuse_divergence(largest(tensors))  # a figure is of before the update: weights may be worse than it
        write_training(self.folder / name, tensors, text)

    def _draw(self) -> None:
        if self.trainee.curves is not None:
            draw_curves(self.folder / CURVES, self.history, self.trainee.curves)
        self.drawn = time.monotonic()

    def _refuse_divergence(self, figures: Figures) -> None:
        if wrong := [key for key, value in figures.items() if not math.isfinite(value)]:
            kept = "the last good checkpoint is kept" if (self.folder / CHECKPOINT).exists() else "no checkpoint yet"
            raise DivergedError(
                f"{wrong[0]} became {figures[wrong[0]]} in step {self.step} in {self.folder} ({kept}); "
                "start again with restart=True (--restart) and a lower learning rate"
            )


def to_floats(values: Sequence[float | Tensor]) -> list[float]:
    """Of one figure, step after step; those of a device come over in one copy."""
    tensors = [value.detach() for value in values if isinstance(value, Tensor)]
    if len(tensors) < len(values) or len({tensor.dtype for tensor in tensors}) > 1:
        return [float(value) for value in values]
    read: list[float] = torch.stack(tensors).tolist()
    return read


def _without_counts(line: Figures) -> Figures:
    return {key: value for key, value in line.items() if key not in ("step", "seconds")}


def largest(tensors: Mapping[str, Tensor]) -> Figures:
    """The largest magnitude in each tensor of floats; NaN or infinite where it holds such a value."""
    return {
        name: float(torch.linalg.vector_norm(tensor.detach(), torch.inf))
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and tensor.numel()
    }


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
    return read_tensors(path, KIND, "train it again with restart=True (--restart)")


def write_training(path: Path, tensors: Mapping[str, Tensor], text: Mapping[str, Any]) -> None:
    """The text lies in the tensors' file, so that both are of the same step; for people also in a .json beside it."""
    write_atomic(path.with_suffix(".json"), as_utf8(json.dumps(with_checksum(text), indent=1, ensure_ascii=False)))
    write_tensors(path, KIND, tensors, text)


def remove_training(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(".json").unlink(missing_ok=True)


def to_trained(path: Path, tensors: dict[str, Tensor], text: Mapping[str, Any]) -> Trained:
    history = text.get("state", {}).get("history", [])
    try:
        return Trained(path.parent, tensors, text["identity"], text["steps"], text["seconds"], text["figures"], history)
    except KeyError as error:
        raise DamagedError(f"{path} is no finished training: it says nothing of {error}; train it again") from None


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


def refuse_other_training(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Name what differs between the training of a checkpoint and the one that wants to resume it."""
    now = json.loads(json.dumps(now))  # as it would be read back: tuples become lists
    if differences := [_difference(part, before.get(part), now[part]) for part in now if before.get(part) != now[part]]:
        raise InvalidInputError(
            f"{path} belongs to another training: {'; '.join(differences)}; "
            "repeat the options of that one, choose another --out, or discard it with restart=True (--restart)"
        )


def _difference(part: str, before: Any, now: Any) -> str:
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return f"its {part} differs"
    return "; ".join(f"{part} {_short(key, before.get(key), now[key])}" for key in now if before.get(key) != now[key])


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
