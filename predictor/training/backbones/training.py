"""Supervised training of a backbone and its classifier on the base classes: the paper's R_large^pt and w_large^pt.

OUT holds best.safetensors and last.safetensors (weights for `actstore build --weights`), log.csv, curves.png,
and checkpoint.safetensors, from which the same command goes on where it was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actstore.compute.device import parse_device
from actstore.errors import InvalidInputError
from actstore.images.image_set import ImageSet, Loadable
from predictor.protocol.category_split import CategorySplit
from predictor.training.backbones.config import TrainingConfig
from predictor.training.backbones.former_checkpoint import convert_checkpoint
from predictor.training.backbones.images import TrainingImages, select_images, steps_per_epoch
from predictor.training.backbones.trainee import BEST, LAST, BackboneTrainee, kept_line
from predictor.training.loop import Report, RunOptions, train
from predictor.training.processes import joined_processes
from predictor.training.run_files import Trained


@dataclass(frozen=True)
class TrainingResult:
    """Accuracies are 0 to 1, on `val_images` held-out images of the same classes; unreadable: which, and why.

    best_epoch: the one whose weights are kept; the last where only images of val are held out, as these choose nothing.
    """

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

    def __str__(self) -> str:
        skipped = f"; {len(self.unreadable):,} unreadable, such as {self.unreadable[0]}" if self.unreadable else ""
        return (
            f"{self.weights}: {self.backbone} on {self.train_images:,} images of {self.classes:,} base classes, "
            f"{self.epochs} epochs in {self.seconds:.0f} s ({self.images_per_second:,.0f} images/s); "
            f"top-1 {self.best_val_top1:.2%}, top-5 {self.best_val_top5:.2%} in epoch {self.best_epoch} (kept) on "
            f"{self.val_images:,} held-out images ({self.held_out}){skipped}"
        )


def train_backbone(
    sets: Mapping[str, ImageSet[Loadable]],
    split: CategorySplit,
    config: TrainingConfig,
    out: Path,
    device: str = "auto",
    workers: int = 0,
    options: RunOptions = RunOptions(),  # noqa: B008 - frozen
    report: Report | None = None,
    decoded: Callable[[int, int], None] | None = None,
    held_out_seed: int | None = None,
) -> TrainingResult:
    """Train on the base classes of the split, and only on those; resume what is in `out` of the same training.

    Under torchrun every process calls this. decoded: told of (images done, images in all). held_out_seed: draws the
    held-out tenth where there is no split val, in place of the seed of the training.
    """
    images = select_images(sets, split, config.seed if held_out_seed is None else held_out_seed)
    identity = {
        "config": config.to_json(),
        "split": split.to_json(),
        "source": {"images": len(images.train), "listing": images.fingerprint()},
    }
    unreadable: dict[str, None] = {}
    with joined_processes(parse_device(device)) as (processes, place):
        if (batch := min(config.batch_size, len(images.train))) < processes.count:
            raise InvalidInputError(
                f"a batch of {batch} images cannot be shared by {processes.count} processes; use a larger "
                "--batch-size or fewer processes"
            )
        if processes.is_first and not options.restart:
            convert_checkpoint(out)
        every = steps_per_epoch(len(images.train), config.batch_size)
        trained = train(
            out,
            identity,
            lambda: BackboneTrainee(images, config, place, processes, unreadable, workers, decoded),
            config.epochs * every,
            config.epochs_per_line * every,
            options,
            report,
            processes,
            products=(BEST, LAST),
        )
    return _result(trained, images, config, list(unreadable))


def _result(trained: Trained, images: TrainingImages, config: TrainingConfig, unreadable: list[str]) -> TrainingResult:
    history, best = trained.history, kept_line(trained.history, images.may_choose, config)
    return TrainingResult(
        weights=str(trained.folder / BEST),
        backbone=config.backbone,
        classes=len(images.classes),
        train_images=len(images.train),
        val_images=len(images.validation),
        held_out=images.held_out,
        epochs=int(history[-1]["epoch"]),
        steps=trained.steps,
        seconds=trained.seconds,
        images_per_second=sum(line["images_per_second"] for line in history) / len(history),
        train_loss=history[-1]["train_loss"],
        val_top1=history[-1]["val_top1"],
        val_top5=history[-1]["val_top5"],
        best_epoch=int(best["epoch"]),
        best_val_top1=best["val_top1"],
        best_val_top5=best["val_top5"],
        unreadable=unreadable,
    )
