"""What is trained: a `Trainee` says what a step is, loop.py does the rest."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from predictor.training.processes import Processes


def cosine(step: int, steps: int) -> float:
    """The share of a learning rate that is left in a step, counted from 0: from 1 down to 0 after the last."""
    return (1 + math.cos(math.pi * step / steps)) / 2


@dataclass(frozen=True)
class Panel:
    """columns: of the log, with their names for people; one panel of curves.png, left out where the log has none."""

    label: str
    columns: Mapping[str, str]
    factor: float = 1.0


@dataclass(frozen=True)
class Curves:
    panels: tuple[Panel, ...]
    across: str = "step"
    title: str = ""


def draw_curves(path: Path, history: Sequence[Mapping[str, float]], curves: Curves) -> None:
    """One panel beside the other; nothing where the log has no line."""
    from predictor.figures.style import BLACK, BLUE, GREEN, LINES, ORANGE, new_panels, plot_log, save

    if not history:
        return
    panels = [panel for panel in curves.panels if set(panel.columns) <= set(history[0])]
    figure, all_axes = new_panels(5 * len(panels), 4, curves.across, *(panel.label for panel in panels))
    figure.suptitle(curves.title, fontsize=11)
    for axes, panel in zip(all_axes, panels, strict=True):
        colours = (BLUE, ORANGE, GREEN) if len(panel.columns) > 1 else (BLACK,)
        for (column, name), colour, dashes in zip(panel.columns.items(), colours, LINES, strict=False):
            style = {"linestyle": dashes, "color": colour, "label": name}
            plot_log(axes, history, curves.across, column, panel.factor, **style)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(panel.columns) > 1:
            axes.set_ylim(bottom=0)
            axes.legend(frameon=False)
    save(figure, path)


Tensors = dict[str, Tensor]
Figures = dict[str, float]


class Trainee(ABC):
    """A module, its optimiser, and whatever else the next step depends on.

    The batch of a step must be a pure function of (seed, number), see streams/sampling.py: then a training that was
    killed and repeated ends bit for bit as one that was not.
    """

    module: nn.Module
    optimiser: torch.optim.Optimizer
    prefix = ""  # of the module's tensors, in checkpoints and models
    has_converged = False  # set by `step` or `measure` to stop before the last step; part of what `state` restores
    steps_per_reading = 1  # more on a GPU: reading a figure waits for the device to catch up
    curves: Curves | None = None  # what curves.png shows of the log

    @abstractmethod
    def step(self, number: int) -> Mapping[str, float | Tensor]:
        """Learn from batch `number`, counted from 0; returns figures, the same keys every time."""

    def descend(self, loss: Tensor, rate: float | None = None, processes: Processes = Processes()) -> None:  # noqa: B008
        """One step of the optimiser, by the gradients of all processes' losses, summed."""
        set_rate(self.optimiser, rate)
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                processes.sum(parameter.grad)
        self.optimiser.step()

    def line(self, step: int, sums: Figures, count: int, seconds: float) -> Figures:
        """A line of the log after `step` steps: here means over its `count` steps, which took `seconds`.

        All of several processes are asked, and the first alone for what it measures.
        """
        return {"step": step, **{key: value / count for key, value in sums.items()}}

    def measure(self) -> Figures:
        """Figures of held-out data, for every line of the log."""
        return {}

    def state(self) -> Tensors:
        """Every tensor that a later step depends on."""
        return self.weights() | optimiser_state(self.optimiser, self.module)

    def restore(self, tensors: Tensors) -> None:
        self.module.load_state_dict({name: tensors[self.prefix + name] for name in self.module.state_dict()})
        restore_optimiser(self.optimiser, self.module, tensors)

    def weights(self) -> Tensors:
        return {self.prefix + name: tensor for name, tensor in self.module.state_dict().items()}

    def model(self) -> Tensors | None:
        """What model.safetensors holds in the end; None where files of `after_line` are the model."""
        return self.weights()

    def after_line(self, folder: Path, history: Sequence[Figures]) -> None:  # noqa: B027 - few need it
        """Write files of this moment; history: the log so far."""

    def keep(self, folder: Path) -> None:  # noqa: B027 - few need it
        """Write further files beside the model; called once, at the end."""


def set_rate(optimiser: torch.optim.Optimizer, rate: float | None) -> None:
    """The learning rate of the next step; None leaves it as it is."""
    if rate is not None:
        for group in optimiser.param_groups:
            group["lr"] = rate


def optimiser_state(optimiser: torch.optim.Optimizer, module: nn.Module) -> Tensors:
    """Momenta and the like, named after their parameters."""
    return {
        f"optimiser.{key}.{name}": value
        for name, parameter in module.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `optimiser_state`; other tensors are left alone."""
    parameters = dict(module.named_parameters())
    for full, value in tensors.items():
        _, is_state, rest = full.partition("optimiser.")
        key, _, name = rest.partition(".")
        if is_state and name in parameters:
            parameter = parameters[name]
            # as the parameter lies in memory; a count of steps has another shape
            like = torch.empty_like(parameter.detach()) if value.shape == parameter.shape else value.clone()
            optimiser.state[parameter][key] = like.copy_(value)
