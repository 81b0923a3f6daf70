"""Training phi on the base categories (Eq. 3 of the paper): statistics in, parameters out, queries judge them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actstore.compute.device import free_memory, has_bfloat16, parse_device, steps_per_reading
from actstore.compute.tensors import one_thread
from actstore.errors import InvalidInputError
from actstore.split import Split
from actstore.streams.class_batches import Batch, ClassBatches
from predictor.phi.network import Phi
from predictor.phi.recogniser import PhiMethod
from predictor.protocol.base_categories import is_signed, rows_of
from predictor.protocol.calibration import forget_calibrations
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.evaluation import AllWayTask, outcomes
from predictor.training.loop import Report, RunOptions
from predictor.training.loop import train as run
from predictor.training.phi_config import TrainConfig
from predictor.training.phi_loss import category_loss
from predictor.training.processes import Processes, joined_processes
from predictor.training.run_files import Trained
from predictor.training.trainee import Curves, Figures, Panel, Trainee

WEIGHTS = "phi."
MONITOR_DRAWS, MONITOR_QUERIES = 5, 5000  # enough to see a curve; `ppa eval` measures properly
ACCURACIES = {"base_top1": "base categories", "novel_top1": "novel categories, 1 shot", "harmonic": "harmonic mean"}
SMALL_STEP = 4e8  # multiplications of one product; below, a second thread costs more than it gains


@dataclass(frozen=True)
class TrainOptions:
    """What does not change the outcome on a CPU. resident: hold the activations in (GPU) memory; None: on a GPU
    whose memory they fill by less than half."""

    device: str = "auto"
    resident: bool | None = None
    run: RunOptions = field(default_factory=RunOptions)


def run_phi_training(
    train: Split,
    test: Split | None,
    categories: CategorySplit,
    config: TrainConfig,
    folder: Path,
    options: TrainOptions = TrainOptions(),  # noqa: B008 - frozen
    report: Report | None = None,
) -> Trained:
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
                folder,
                identify(train, categories, config),
                lambda: PhiTraining(train, test, categories, config, device, resident, processes),
                config.steps,
                every=config.batches,
                options=options.run,
                report=report,
                processes=processes,
            )


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
        self,
        train: Split,
        test: Split | None,
        categories: CategorySplit,
        config: TrainConfig,
        device: torch.device,
        resident: bool = False,
        processes: Processes = Processes(),  # noqa: B008 - frozen
    ) -> None:
        if processes.is_first:
            train.statistics()  # once, and not in the middle of a step
        processes.wait()
        self._split, self._base, self._config = train, categories.base, config
        self._device, self._resident, self._processes = device, resident, processes
        self._in_bfloat16, self.steps_per_reading = has_bfloat16(device), steps_per_reading(device)
        self.module = self.phi = Phi(config.spec(train.dim, is_signed(train, self._base))).to(device)
        self.optimiser = torch.optim.SGD(
            self.phi.parameters(),
            lr=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            fused=True,
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
            self._split,
            classes=self._base,
            seed=config.seed,
            start_step=first,
            steps=config.steps - first,
            p_mean=config.p_mean,
            examples=config.examples,
            rank=self._processes.rank,
            world_size=self._processes.count,
            resident=self._resident,
            device=self._device,
        )

    def measure(self) -> Figures:
        if self._task is None:
            return {}
        phi = deepcopy(self.phi).cpu().float().eval().requires_grad_(False)
        method = PhiMethod(phi)
        metrics = [outcome.metrics() for outcome in outcomes(method, self._task, 1, range(MONITOR_DRAWS), seed=0)]
        of_metrics = ("top1_large", "top1_few", "harmonic_mean")
        return {
            name: sum(draw[key] for draw in metrics) / len(metrics)
            for name, key in zip(ACCURACIES, of_metrics, strict=True)
        }

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
