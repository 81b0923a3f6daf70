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
per `every` steps), and checkpoint.safetensors until the run is finished.
"""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from actstore.backbones.training_checkpoint import locked, refuse_other_training
from actstore.errors import ActstoreError
from actstore.files import write_atomic
from actstore.run_files import (
    CHECKPOINT,
    LOG,
    MODEL,
    READABLE,
    Figures,
    Tensors,
    Trained,
    read_model,
    read_trained,
    read_training,
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
        """Figures of held-out data, after every `every` steps and after the last one."""
        return {}

    def keep(self, folder: Path) -> None:  # noqa: B027 - few need it
        """Write further files beside the model; called once, at the end."""


@dataclass(frozen=True)
class RunOptions:
    """What does not change the outcome."""

    checkpoint_seconds: float = 30.0
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
) -> Trained:
    """Train, or go on with what is in the folder; a finished training of the same identity is only read.

    identity: all that decides the outcome, in parts that are mappings, such as {"config": {"lr": 0.1}, "split": {…}}.
    """
    identity = {**identity, "run": {"steps": steps, "every": every}}
    with locked(folder):
        if options.restart:
            for name in (MODEL, READABLE, CHECKPOINT, LOG):
                (folder / name).unlink(missing_ok=True)
        if (folder / MODEL).exists():
            done = read_model(folder / MODEL)
            refuse_other_training(folder / MODEL, done.identity, identity)
            return done
        return _Loop(folder, identity, make(), steps, every, options, report).run()


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
    ) -> None:
        self._folder, self._identity, self._trainee = folder, identity, trainee
        self._steps, self._every, self._options = steps, every, options
        self._report = report or (lambda done, total, figures: None)
        self._state = _State()

    def run(self) -> Trained:
        state, trainee = self._state, self._trainee
        if (self._folder / CHECKPOINT).exists():
            state = self._state = self._resume()
        began, saved = time.monotonic() - state.seconds, time.monotonic()
        while state.step < self._steps and not trainee.has_converged:
            figures = trainee.step(state.step)
            state.step += 1
            self._refuse_divergence(figures)  # before a checkpoint could keep it
            for key, value in figures.items():
                state.sums[key] = state.sums.get(key, 0.0) + value
            state.seconds = time.monotonic() - began
            if state.step % self._every == 0 or state.step == self._steps:
                figures = self._end_line()
            self._report(state.step, self._steps, figures)
            if time.monotonic() - saved >= self._options.checkpoint_seconds:
                self._save()
                saved = time.monotonic()
        return self._finish()

    def _end_line(self) -> Figures:
        state = self._state
        count = (state.step - 1) % self._every + 1  # the last line may be of fewer steps
        figures = {key: value / count for key, value in state.sums.items()} | self._trainee.measure()
        self._refuse_divergence(figures)
        state.history.append({"step": state.step, **figures, "seconds": state.seconds})
        state.sums = {}
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
        tensors = self._trainee.state()
        self._refuse_divergence(largest(tensors))  # a figure is of before the update: weights may be worse than it
        text = {"identity": self._identity, "state": asdict(self._state)}
        write_training(self._folder / CHECKPOINT, tensors, text)

    def _resume(self) -> _State:
        path = self._folder / CHECKPOINT
        tensors, written = read_training(path)
        refuse_other_training(path, written["identity"], self._identity)
        self._trainee.restore(tensors)
        return _State(**written["state"])

    def _finish(self) -> Trained:
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
        write_atomic(self._folder / READABLE, json.dumps(text, indent=1, ensure_ascii=False).encode())
        write_training(self._folder / MODEL, tensors, text)  # last: it says that all is there
        (self._folder / CHECKPOINT).unlink(missing_ok=True)
        return read_model(self._folder / MODEL)


def largest(tensors: Mapping[str, Tensor]) -> Figures:
    """The largest magnitude in each tensor of floats; NaN or infinite where it holds such a value."""
    floats = {name: one.detach() for name, one in tensors.items() if one.is_floating_point() and one.numel()}
    return {name: float(torch.linalg.vector_norm(one, torch.inf)) for name, one in floats.items()}


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
