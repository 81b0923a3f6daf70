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
from actstore.errors import DivergedError
from predictor.training.processes import Processes
from predictor.training.run_files import (
    CHECKPOINT,
    CURVES,
    LOG,
    MODEL,
    Kept,
    Trained,
    is_finished,
    locked,
    read_training,
    refuse_other_training,
    remove_training,
    share_kept,
    to_trained,
    write_log,
    write_training,
)
from predictor.training.trainee import Figures, Trainee, draw_curves

Report = Callable[[int, int, Figures], None]  # steps done, steps in all, the newest figures
SECONDS_PER_DRAWING = 30.0  # of curves.png


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
    with locked(folder) if processes.is_first else nullcontext():
        if options.restart and processes.is_first:
            discard(folder, products)
        kept = share_kept(processes, _kept(folder, identity) if processes.is_first else None)
        if kept is None or not is_finished(kept):
            run = _Run(folder, identity, make(), steps, every, processes)
            if kept is not None:
                run.resume(kept)
            with noted_signals() as interruption:
                run.learn(options, report or (lambda done, total, figures: None), interruption)
                # still noting signals: all steps are done, and their results are written before it ends
                kept = share_kept(processes, run.finish() if processes.is_first else None)
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

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in STATE}

    def save(self) -> None:
        """A checkpoint; never one of weights that are lost already."""
        if self.processes.is_first:
            self._write(CHECKPOINT, self.trainee.state(), {"identity": self.identity, "state": self.state()})

    def finish(self) -> Kept:
        tensors, name = self.trainee.model(), MODEL
        figures = _without_counts(self.history[-1] if self.history else {})
        text = {"identity": self.identity, "steps": self.step, "seconds": self.seconds, "figures": figures}
        if tensors is None:  # the checkpoint stays, and says that the trainee's own files are whole
            tensors, name, text["state"] = self.trainee.state(), CHECKPOINT, self.state()
        write_log(self.folder, self.history)
        self._draw()
        self.trainee.keep(self.folder)
        self._write(name, tensors, text)  # last: it says that all is there
        if name == MODEL:
            remove_training(self.folder / CHECKPOINT)
        return read_training(self.folder / name)

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
