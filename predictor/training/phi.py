"""Training phi on the base categories: its settings, the loss of Equation 3 of the paper, and the trainee."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from actstore.compute.device import free_memory, has_bfloat16, parse_device, steps_per_reading
from actstore.compute.tensors import one_thread
from actstore.errors import InvalidInputError
from actstore.split import Split
from actstore.streams.class_batches import Batch, ClassBatches
from predictor.phi.network import LAYERS, Phi, PhiSpec
from predictor.phi.rule import PhiMethod
from predictor.protocol import PhiKind
from predictor.protocol.base_categories import is_signed, rows_of
from predictor.protocol.calibration import forget_calibrations
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.evaluation import AllWayTask, measure
from predictor.training.loop import Report, RunOptions, Trained
from predictor.training.loop import train as run
from predictor.training.processes import Processes, joined_processes
from predictor.training.trainee import Curves, Figures, Panel, Trainee, cosine

WEIGHTS = "phi."
MONITOR_DRAWS, MONITOR_QUERIES = 5, 5000  # enough to see a curve; `ppa eval` measures properly
ACCURACIES = {"base_top1": "base categories", "novel_top1": "novel categories, 1 shot", "harmonic": "harmonic mean"}
SMALL_STEP = 4e8  # multiplications of one product; below, a second thread costs more than it gains
LOGIT_BYTES = 1 << 28  # of one block of logits; torch's cross entropy holds three times as much


@dataclass(frozen=True)
class TrainConfig:
    """p_mean: how often a category's statistic is the mean of all its rows; else it is that of some random rows, at
    least and at most as many as `examples` says. decay: (epoch, factor) pairs; from that epoch on the learning rate is
    multiplied by the factor. cosine: it falls to 0 along a half cosine instead."""

    phi: PhiKind = "phi2"
    epochs: int = 300
    batches: int = 250
    learning_rate: float = 1e-3
    decay: tuple[tuple[int, float], ...] = ()
    weight_decay: float = 5e-4
    momentum: float = 0.9
    p_mean: float = 0.9
    input_norm: bool = True
    bias: bool = True
    query_norm: bool = False
    seed: int = 0
    examples: tuple[int, int] = (1, 1)
    cosine: bool = False

    def __post_init__(self) -> None:
        positive = {"epochs": self.epochs, "batches": self.batches, "learning_rate": self.learning_rate}
        for name, value in positive.items():
            if not value > 0:
                raise InvalidInputError(f"{name.replace('_', ' ')} must be positive, got {value}")
        if not 0 <= self.p_mean <= 1:
            raise InvalidInputError(f"p_mean must be a probability between 0 and 1, got {self.p_mean}")
        if not 1 <= self.examples[0] <= self.examples[1]:
            raise InvalidInputError(f"examples must be the least and the most, 1 or more, got {self.examples}")

    @property
    def steps(self) -> int:
        return self.epochs * self.batches

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        if self.cosine:
            return self.learning_rate * cosine(step, self.steps)
        factors = [factor for epoch, factor in self.decay if step // self.batches >= epoch]
        return self.learning_rate * (factors[-1] if factors else 1.0)

    def spec(self, dim: int, signed: bool = False) -> PhiSpec:
        """signed: activations may be negative, which makes a difference to phi's ReLU."""
        return PhiSpec(self.phi, dim, self.input_norm, self.bias, self.query_norm, signed and LAYERS[self.phi] > 1)

    def to_json(self) -> dict[str, Any]:
        """What the paper has not only where it is in use: earlier trainings are still recognised as the same."""
        beyond = {"examples": (1, 1), "cosine": False}
        return {name: value for name, value in asdict(self).items() if name not in beyond or value != beyond[name]}


PRESETS = {
    # "Implementation Details"; the rate never falls. Where the paper is silent (input norm, biases, identity start)
    # both presets follow the authors' code.
    "paper": TrainConfig(),
    # the authors' MiniImageNet code: its shipped run ends at epoch 50, where its rate would first fall
    "code": TrainConfig(epochs=50, decay=((50, 0.5), (120, 0.1), (175, 0.01)), p_mean=0.3),
}


def choose_config(preset: str, phi: PhiKind, **changes: Any) -> TrainConfig:
    """A preset with what is given (not None) in its place. phi2star always trains on means: that is what it is."""
    if preset not in PRESETS:
        raise InvalidInputError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    known = {field.name for field in fields(TrainConfig)}
    settings = {name: value for name, value in changes.items() if value is not None}
    if unknown := sorted(set(settings) - known):
        raise InvalidInputError(f"a training has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")
    if phi == "phi2star":
        if settings.get("p_mean", 1.0) != 1.0:
            raise InvalidInputError(f"phi2star is trained on means only, got p_mean {settings['p_mean']}; choose phi2")
        settings["p_mean"] = 1.0
    return replace(PRESETS[preset], phi=phi, **settings)


@dataclass(frozen=True)
class TrainOptions:
    """What does not change the outcome on a CPU. resident: hold the activations in (GPU) memory; None: on a GPU
    whose memory they fill by less than half."""

    device: str = "auto"
    resident: bool | None = None
    run: RunOptions = field(default_factory=RunOptions)


def run_phi_training(
    train: Split, test: Split | None, categories: CategorySplit, config: TrainConfig, folder: Path,
    options: TrainOptions = TrainOptions(), report: Report | None = None,  # noqa: B008 - frozen
) -> Trained:  # fmt: skip
    """Train in `folder`, or go on where it was interrupted: the outcome is the same, bit for bit.

    test: where held-out accuracies of the log come from; on the validation categories where the split has some,
    else on the novel ones. Nothing is chosen by them.

    Under torchrun every process calls this and takes its part of the categories: the outcome is that of one process
    but for rounding, and only the first writes to `folder`.
    """
    categories.require_known(train.classes, ("base",))
    with joined_processes(parse_device(options.device)) as (processes, device):
        n_base = len(categories.base)
        if n_base < processes.count:
            raise InvalidInputError(
                f"{n_base} base categories cannot be shared by {processes.count} processes; start fewer"
            )
        resident = fits_device(train, device, processes.count) if options.resident is None else options.resident
        with few_threads(-(-n_base // processes.count), train.dim):
            return run(
                folder, identify(train, categories, config),
                lambda: PhiTraining(train, test, categories, config, device, resident, processes),
                config.steps, config.batches, options.run, report, processes,
            )  # fmt: skip


def identify(train: Split, categories: CategorySplit, config: TrainConfig) -> dict[str, Any]:
    """All that decides the outcome of a training, and what its activations came from."""
    return {
        "method": config.phi,
        "config": config.to_json(),
        "categories": categories.to_json(),
        "phi": config.spec(train.dim, is_signed(train, categories.base)).to_json(),
        "store": {"content": train.content, "weights_sha256": train.spec.provenance.get("weights_sha256")},
    }


class PhiTraining(Trainee):
    """phi, its optimiser, and the stream it learns from: of several processes' streams, the part of this one."""

    prefix = WEIGHTS
    curves = Curves((Panel("training loss", {"loss": "loss"}), Panel("held-out top-1, all-way (%)", ACCURACIES)))

    def __init__(
        self, train: Split, test: Split | None, categories: CategorySplit, config: TrainConfig, device: torch.device,
        resident: bool = False, processes: Processes = Processes(),  # noqa: B008 - frozen
    ) -> None:  # fmt: skip
        if processes.is_first:
            train.statistics()  # once, and not in the middle of a step
        processes.wait()
        self._split, self._base, self._config = train, categories.base, config
        self._device, self._resident, self._processes = device, resident, processes
        self._in_bfloat16, self.steps_per_reading = has_bfloat16(device), steps_per_reading(device)
        self.module = self.phi = Phi(config.spec(train.dim, is_signed(train, self._base))).to(device)
        self.optimiser = torch.optim.SGD(
            self.phi.parameters(), config.learning_rate, config.momentum, weight_decay=config.weight_decay, fused=True
        )
        self._batches: Iterator[Batch] | None = None
        novel = categories.validation or categories.novel
        is_held_out = bool(novel) and processes.is_first
        self._task = held_out_task(train, test, self._base, novel) if test is not None and is_held_out else None

    def step(self, number: int) -> dict[str, Tensor]:
        if self._batches is None:
            self._batches = iter(self._stream(number))
        batch = next(self._batches)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._in_bfloat16):
            parameters = self._processes.gather(self.phi(batch.statistics), len(self._base))  # (n_class, dim)
            loss = category_loss(self.phi.scale_queries(batch.queries), parameters, batch.targets)
        self.descend(loss, self._config.rate(number), self._processes)
        return {"loss": self._processes.sum(loss.detach())}

    def _stream(self, first: int) -> ClassBatches:
        config = self._config
        return ClassBatches(
            self._split, classes=self._base, seed=config.seed, start_step=first, steps=config.steps - first,
            p_mean=config.p_mean, examples=config.examples, rank=self._processes.rank,
            world_size=self._processes.count, resident=self._resident, device=self._device,
        )  # fmt: skip

    def measure(self) -> Figures:
        if self._task is None:
            return {}
        method = PhiMethod(deepcopy(self.phi).cpu().float().eval().requires_grad_(False))
        mean = measure(method, self._task, [1], MONITOR_DRAWS)[0].mean
        return {"base_top1": mean["top1_large"], "novel_top1": mean["top1_few"], "harmonic": mean["harmonic_mean"]}

    def keep(self, folder: Path) -> None:
        forget_calibrations(folder)


def held_out_task(train: Split, test: Split, base: tuple[str, ...], novel: tuple[str, ...]) -> AllWayTask | None:
    """None where there is no example or no test image of a novel category, or no test image of a base one."""
    known = set(train.classes) & set(test.classes)
    drawn = tuple(name for name in novel if name in known and len(train.query(classes=[name])))
    if not drawn or train.path == test.path:
        return None
    if not len(rows_of(test, base)[0]) or not len(rows_of(test, drawn)[0]):
        return None
    return AllWayTask(train, test, base, drawn, MONITOR_QUERIES)


def fits_device(split: Split, device: torch.device, processes: int = 1) -> bool:
    """Whether a card can hold its share of the split in half of its memory. Where memory is the host's, the mapped
    store is as fast as memory."""
    free = free_memory(device)
    return free is not None and len(split) * split.spec.row_bytes // processes < free // 2


def few_threads(n_class: int, dim: int) -> AbstractContextManager[None]:
    """One thread for small products: at 80 x 512 a step took 7 ms of CPU time on one thread and 54 ms on two of a
    busy machine, which wait for each other."""
    return one_thread() if n_class * dim * dim < SMALL_STEP else nullcontext()


def category_loss(queries: Tensor, parameters: Tensor, targets: Tensor) -> Tensor:
    """(m, dim), (n, dim) and (m,) -> the queries' share of the mean over n: the sum of their losses / n.

    m is n, or less where several processes share the queries. Up to LOGIT_BYTES of logits are computed as one;
    above, 21,000 x 21,000 of them would take 1.8 GB, and 5.3 GB with their gradient.
    """
    rows = max(1, LOGIT_BYTES // (4 * len(parameters)))
    if len(queries) > rows:
        loss: Tensor = _InBlocks.apply(queries, parameters, targets, rows)  # type: ignore[no-untyped-call]
        return loss
    logits = torch.mm(queries, parameters.T)  # (m, n)
    return cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), targets) * (
        len(queries) / len(parameters)
    )


class _InBlocks(torch.autograd.Function):
    """Finds the gradients on the way, while the logits of a block are at hand: the same three products as at once."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, parameters: Tensor, targets: Tensor, rows: int) -> Tensor:
        precise = torch.float64 if queries.dtype == torch.float64 else torch.float32
        of_parameters = torch.zeros_like(parameters, dtype=precise)
        of_queries = torch.empty_like(queries) if ctx.needs_input_grad[0] else None
        loss = torch.zeros((), dtype=precise, device=queries.device)
        for start in range(0, len(queries), rows):
            part = slice(start, start + rows)
            own, right = queries[part], targets[part, None]
            slopes = torch.mm(own, parameters.T).to(precise)  # (rows, n) logits, then their gradient, in one memory
            slopes -= slopes.amax(1, keepdim=True)
            of_right = slopes.gather(1, right)
            totals = slopes.exp_().sum(1, keepdim=True)
            loss += (totals.log() - of_right).sum()
            slopes /= totals
            slopes.scatter_add_(1, right, slopes.new_full(right.shape, -1.0))
            of_parameters += torch.mm(slopes.T, own)
            if of_queries is not None:
                of_queries[part] = torch.mm(slopes, parameters)
        ctx.gradients = (of_queries, of_parameters.to(parameters.dtype))
        ctx.n_class = len(parameters)
        return loss / len(parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        of_queries, of_parameters = ctx.gradients
        factor = gradients[0] / ctx.n_class
        return None if of_queries is None else of_queries * factor, of_parameters * factor, None, None
