"""A training in a folder of its own: steps, a log, checkpoints, and exact resumption after a kill.

A method that needs training is a `Trainee`; `train` does the rest:

    class Embedding(Trainee):
        def step(self, number): ...      # learn from batch `number`; return figures, such as {"loss": 0.3}
        def state(self): ...             # every tensor that a later step depends on
        def restore(self, tensors): ...
        def model(self): ...             # the tensors to keep

    trained = train(folder, identity, lambda: Embedding(config, split), steps=1000)
    trained = read_trained(folder, "triplet", "ppa baseline triplet")     # later, or elsewhere

The batch of a step must be a pure function of (seed, number): `actstore.sampling.generator`. Then a run that was
killed and repeated ends bit for bit as one that was not. FOLDER holds model.safetensors (the tensors to keep, and
the identity of the run in its metadata), model.json (the same identity and figures, for people), log.csv (a line
per `every` steps), and checkpoint.safetensors until the run is finished. SIGINT and SIGTERM end it after the step
under way, with a checkpoint.

Several processes may train one model (processes.py): all call `train`, their trainees end every step with the same
weights and figures, and the first alone measures and writes.
"""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actstore.backbones.training_checkpoint import locked, refuse_other_training
from actstore.checksum import sealed
from actstore.errors import ActstoreError
from actstore.files import write_atomic
from actstore.interruption import Interruption, noted_signals
from actstore.processes import Processes
from actstore.run_files import (
    CHECKPOINT,
    LOG,
    MODEL,
    READABLE,
    Figures,
    Kept,
    Tensors,
    Trained,
    optimiser_state,
    read_trained,
    read_training,
    restore_optimiser,
    share_kept,
    to_trained,
    write_log,
    write_training,
)  # fmt: skip

__all__ = [
    "DivergedError", "Figures", "Report", "RunOptions", "Tensors", "Trained", "Trainee", "optimiser_state",
    "read_trained", "restore_optimiser", "train",
]  # fmt: skip
Report = Callable[[int, int, Figures], None]  # steps done, steps in all, the newest figures


class DivergedError(ActstoreError):
    """A figure of a training is no longer a number."""


class Trainee(ABC):
    """What is trained: weights, and whatever else the next step depends on."""

    has_converged: bool = False  # set by `measure` to stop before the last step; part of what `state` restores

    @abstractmethod
    def step(self, number: int) -> Figures:
        """Learn from batch `number`, counted from 0; the same keys every time. Means of them are logged."""

    @abstractmethod
    def state(self) -> Tensors: ...

    @abstractmethod
    def restore(self, tensors: Tensors) -> None: ...

    @abstractmethod
    def model(self) -> Tensors: ...

    def measure(self) -> Figures:
        """Figures of held-out data, after every `every` steps and after the last one; of several processes only the
        first is asked."""
        return {}

    def keep(self, folder: Path) -> None:  # noqa: B027 - few need it
        """Write further files beside the model; called once, at the end."""


@dataclass(frozen=True)
class RunOptions:
    """What does not change the outcome."""

    checkpoint_seconds: float = 15.0
    restart: bool = False


@dataclass
class _State:
    step: int = 0
    seconds: float = 0.0
    sums: Figures = field(default_factory=dict)  # of the line of the log under way
    history: list[dict[str, float]] = field(default_factory=list)


def train(
    folder: Path,
    identity: Mapping[str, Any],
    make: Callable[[], Trainee],
    steps: int,
    every: int = 100,
    options: RunOptions = RunOptions(),  # noqa: B008 - frozen
    report: Report | None = None,
    processes: Processes = Processes(),  # noqa: B008 - frozen
) -> Trained:
    """Train, or go on with what is in the folder; a finished training of the same identity is only read.

    identity: all that decides the outcome, in parts that are mappings, such as {"config": {"lr": 0.1}, "split": {…}}.
    """
    identity = {**identity, "run": {"steps": steps, "every": every}}
    with locked(folder) if processes.is_first else nullcontext():
        kept = share_kept(processes, _kept(folder, identity, options) if processes.is_first else None)
        if kept is None or "state" in kept[1]:
            loop = _Loop(folder, identity, make(), steps, every, options, report, processes)
            if kept is not None:
                loop.resume(kept)
            kept = share_kept(processes, loop.run())
        assert kept is not None
        return to_trained(folder / MODEL, *kept)


def _kept(folder: Path, identity: Mapping[str, Any], options: RunOptions) -> Kept | None:
    """The finished training in the folder, or its last checkpoint."""
    if options.restart:
        for name in (MODEL, READABLE, CHECKPOINT, LOG):
            (folder / name).unlink(missing_ok=True)
    path = next((path for path in (folder / MODEL, folder / CHECKPOINT) if path.exists()), None)
    if path is None:
        return None
    kept = read_training(path)
    if path.name == MODEL:
        to_trained(path, *kept)  # refuses what is not whole
    refuse_other_training(path, kept[1]["identity"], identity)
    return kept


class _Loop:
    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, Any],
        trainee: Trainee,
        steps: int,
        every: int,
        options: RunOptions,
        report: Report | None,
        processes: Processes,
    ) -> None:
        self._folder, self._identity, self._trainee = folder, identity, trainee
        self._steps, self._every, self._options = steps, every, options
        self._report = report or (lambda done, total, figures: None)
        self._processes = processes
        self._state = _State()

    def resume(self, checkpoint: Kept) -> None:
        tensors, written = checkpoint
        self._trainee.restore(tensors)
        self._state = _State(**written["state"])

    def run(self) -> Kept | None:
        """All steps; returns what the first process keeps."""
        with noted_signals() as interruption:
            self._learn(interruption)
        return self._finish() if self._processes.is_first else None

    def _learn(self, interruption: Interruption) -> None:
        state, trainee, is_over = self._state, self._trainee, self._trainee.has_converged
        began, saved = time.monotonic() - state.seconds, time.monotonic()
        while state.step < self._steps and not is_over:
            figures = trainee.step(state.step)
            state.step += 1
            self._refuse_divergence(figures)  # before a checkpoint could keep it
            for key, value in figures.items():
                state.sums[key] = state.sums.get(key, 0.0) + value
            state.seconds = time.monotonic() - began
            if state.step % self._every == 0 or state.step == self._steps:
                figures = self._end_line()
            self._report(state.step, self._steps, figures)
            is_over, is_asked = self._processes.any(trainee.has_converged, interruption.is_asked)
            if is_asked or time.monotonic() - saved >= self._options.checkpoint_seconds:
                self._save()
                saved = time.monotonic()
            if is_asked:
                self._processes.wait()  # for the checkpoint: torchrun ends all as soon as one has ended
                raise KeyboardInterrupt

    def _end_line(self) -> Figures:
        state = self._state
        count = (state.step - 1) % self._every + 1  # the last line may be of fewer steps
        figures = {key: value / count for key, value in state.sums.items()}
        state.sums = {}
        if self._processes.is_first:
            figures |= self._trainee.measure()
            self._refuse_divergence(figures)
            state.history.append({"step": state.step, **figures, "seconds": state.seconds})
            write_log(self._folder / LOG, state.history)
        return figures

    def _refuse_divergence(self, figures: Figures) -> None:
        if wrong := [key for key, value in figures.items() if not math.isfinite(value)]:
            kept = "the last good checkpoint is kept" if (self._folder / CHECKPOINT).exists() else "no checkpoint yet"
            raise DivergedError(
                f"{wrong[0]} became {figures[wrong[0]]} in step {self._state.step} in {self._folder} ({kept}); "
                "start again with --restart and a lower learning rate"
            )

    def _save(self) -> None:
        if not self._processes.is_first:
            return
        tensors = self._trainee.state()
        self._refuse_divergence(largest(tensors))  # a figure is of before the update: weights may be worse than it
        text = {"identity": self._identity, "state": asdict(self._state)}
        write_training(self._folder / CHECKPOINT, tensors, text)

    def _finish(self) -> Kept:
        state, tensors = self._state, self._trainee.model()
        self._refuse_divergence(largest(tensors))
        last = state.history[-1] if state.history else {}
        summary = {
            "steps": state.step,
            "seconds": state.seconds,
            "figures": {key: value for key, value in last.items() if key not in ("step", "seconds")},
        }
        text = {"identity": self._identity, **summary}
        write_log(self._folder / LOG, state.history)
        self._trainee.keep(self._folder)
        write_atomic(self._folder / READABLE, json.dumps(sealed(text), indent=1, ensure_ascii=False).encode())
        write_training(self._folder / MODEL, tensors, text)  # last: it says that all is there
        (self._folder / CHECKPOINT).unlink(missing_ok=True)
        return read_training(self._folder / MODEL)


def largest(tensors: Mapping[str, Tensor]) -> Figures:
    """The largest magnitude in each tensor of floats; NaN or infinite where it holds such a value."""
    floats = {name: one.detach() for name, one in tensors.items() if one.is_floating_point() and one.numel()}
    return {name: float(torch.linalg.vector_norm(one, torch.inf)) for name, one in floats.items()}
