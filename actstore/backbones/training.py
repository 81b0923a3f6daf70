"""Supervised training of a backbone and its classifier on the base classes: the paper's R_large^pt and w_large^pt.

OUT holds best.safetensors and last.safetensors (weights for `actstore build --weights`), log.csv, curves.png,
and checkpoint.safetensors, from which the same command goes on where it was interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from actstore.backbones.presets import TrainingConfig
from actstore.backbones.training_batches import Batch, open_feed
from actstore.backbones.training_checkpoint import READABLE, TENSORS, locked
from actstore.backbones.training_data import TrainingImages, evaluation_plan, select_images, share_of, training_plan
from actstore.backbones.training_run import BEST, CURVES, LAST, LOG, Run
from actstore.backbones.training_step import evaluate
from actstore.category_split import CategorySplit
from actstore.device import parse_device
from actstore.errors import InvalidInputError
from actstore.processes import joined_processes
from actstore.sources.items import ImageSet, Loadable

STEPS_PER_READING = 20  # on a GPU, where reading a loss waits for it to catch up


@dataclass(frozen=True)
class RunOptions:
    """What does not change the outcome: where and how a training runs, and how often it saves itself."""

    device: str = "auto"
    workers: int = 0
    checkpoint_seconds: float = 15.0
    restart: bool = False


@dataclass(frozen=True)
class Progress:
    """done of total images in this stage; epoch counts from 1, loss is the mean of the epoch so far."""

    stage: Literal["decode", "train"]
    done: int
    total: int
    epoch: int = 0
    loss: float = math.nan


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class TrainingResult:
    """Accuracies are 0 to 1, on `val_images` held-out images of the same classes; unreadable: which, and why."""

    weights: str
    backbone: str
    classes: int
    train_images: int
    val_images: int
    held_out: str
    epochs: int
    steps: int
    seconds: float
    images_per_second: float
    train_loss: float
    val_top1: float
    val_top5: float
    best_epoch: int
    best_val_top1: float
    best_val_top5: float
    unreadable: list[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def train_backbone(
    sets: Mapping[str, ImageSet[Loadable]],
    split: CategorySplit,
    config: TrainingConfig,
    out: Path,
    options: RunOptions = RunOptions(),  # noqa: B008 - frozen
    report: Report | None = None,
) -> TrainingResult:
    """Train on the base classes of the split, and only on those; resume what is in `out` of the same training.

    Under torchrun every process calls this, and `out` must be the same folder for all of them.
    """
    images = select_images(sets, split, config.seed)
    with joined_processes(parse_device(options.device)) as (processes, device):
        if min(config.batch_size, len(images.train)) < processes.count:
            raise InvalidInputError(
                f"a batch of {min(config.batch_size, len(images.train))} images cannot be shared by "
                f"{processes.count} processes; use a larger --batch-size or fewer processes"
            )
        identity = {
            "config": config.to_json(),
            "split": split.to_json(),
            "source": {"images": len(images.train), "listing": images.fingerprint()},
        }
        with locked(out) if processes.is_first else nullcontext():
            run = Run(images, config, out, identity, processes, device)
            if not options.restart:
                run.resume()
            elif processes.is_first:
                _discard(out)
            unreadable = [] if run.is_finished else _train(run, images, config, options, report)
        return _result(run, images, config, out, unreadable)


def _train(
    run: Run, images: TrainingImages, config: TrainingConfig, options: RunOptions, report: Report | None
) -> list[str]:
    """The loop itself. Returns why some images could not be read."""
    tell = report or (lambda progress: None)
    machine, state, unreadable = run.machine, run.state, dict[str, None]()
    rank, count = machine.processes.rank, machine.processes.count
    train, held_out = (
        open_feed(
            part, machine.transform, config, in_memory, options.workers, machine.is_mixed,
            lambda done, total: tell(Progress("decode", done, total)),
        )
        for part, in_memory in ((images.train, config.in_memory), (images.validation, True))
    )  # fmt: skip
    plan = training_plan(
        len(images.train), config.batch_size, config.seed, range(state.epoch, config.epochs), state.step
    )
    batches = _noting(train.batches(share_of(plan, rank, count)), unreadable)
    run.count_seconds(of_epoch=False)
    while not run.is_finished:
        while state.step < run.steps:
            run.step(next(batches))
            is_due = run.is_checkpoint_due(options.checkpoint_seconds) and state.step < run.steps
            if is_due or machine.device.type == "cpu" or state.step % STEPS_PER_READING == 0:
                run.read_losses()
                done = (state.epoch * run.steps + state.step) * run.whole_batch
                total = config.epochs * run.steps * run.whole_batch
                tell(Progress("train", done, total, state.epoch + 1, run.loss))
            if is_due:
                run.count_seconds()
                run.save()
        run.read_losses()
        run.count_seconds()
        plan = share_of(evaluation_plan(len(images.validation), config.batch_size), rank, count)
        top1, top5 = evaluate(run.network, _noting(held_out.batches(plan), unreadable), machine)
        run.count_seconds(of_epoch=False)
        run.end_epoch(top1, top5)
    return list(unreadable)


def _noting(batches: Iterator[Batch], unreadable: dict[str, None]) -> Iterator[Batch]:
    """The same batches; why images could not be read is noted on the way, once each."""
    for batch in batches:
        unreadable.update(dict.fromkeys(batch.unreadable))
        yield batch


def _discard(out: Path) -> None:
    for name in (TENSORS, READABLE, BEST, LAST, LOG, CURVES):
        (out / name).unlink(missing_ok=True)


def _result(
    run: Run, images: TrainingImages, config: TrainingConfig, out: Path, unreadable: list[str]
) -> TrainingResult:
    run.write_reports()
    history, best = run.state.history, run.state.best()
    last = history[-1]
    return TrainingResult(
        weights=str(out / BEST),
        backbone=config.backbone,
        classes=len(images.classes),
        train_images=len(images.train),
        val_images=len(images.validation),
        held_out=images.held_out,
        epochs=last["epoch"],
        steps=last["step"],
        seconds=last["seconds"],
        images_per_second=sum(row["images_per_second"] for row in history) / len(history),
        train_loss=last["train_loss"],
        val_top1=last["val_top1"],
        val_top5=last["val_top5"],
        best_epoch=best["epoch"],
        best_val_top1=best["val_top1"],
        best_val_top5=best["val_top5"],
        unreadable=unreadable,
    )
