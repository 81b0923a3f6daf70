"""Supervised training of a backbone and its classifier on the base classes: the paper's R_large^pt and w_large^pt.

OUT holds best.safetensors and last.safetensors (weights for `actstore build --weights`), log.csv, curves.png,
and checkpoint.safetensors, from which the same command goes on where it was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from actstore.backbones.construction import build_network
from actstore.backbones.weights import save_weights
from actstore.compute.device import has_half, has_streams, parse_device, sent_ahead, steps_per_reading
from actstore.errors import InvalidInputError
from actstore.images.image_set import ImageSet, Loadable
from actstore.storage.tensor_file import below
from predictor.protocol.category_split import CategorySplit
from predictor.training.backbones.batches import IGNORED, Batch, count_recognised, open_feed, to_network
from predictor.training.backbones.config import TrainingConfig
from predictor.training.backbones.images import (
    Plan,
    TrainingImages,
    draw_mixture,
    evaluation_plan,
    select_images,
    share_of,
    steps_per_epoch,
    training_plan,
)
from predictor.training.backbones.layers import CosineClassifier, in_precision, wrap
from predictor.training.loop import Report, RunOptions, train
from predictor.training.processes import Processes, joined_processes
from predictor.training.trainee import Curves, Figures, Panel, Tensors, Trainee, set_rate

BEST, LAST = "best.safetensors", "last.safetensors"
PANELS = (
    Panel("training loss per image", {"train_loss": "loss"}),
    Panel("learning rate", {"lr": "learning rate"}),
    Panel(
        "accuracy (%)",
        {
            "val_top1": "held out, top-1",
            "val_top5": "held out, top-5",
            "train_top1": "training, top-1 (augmented)",
        },
        100.0,
    ),
)


class BackboneTrainee(Trainee):
    """unreadable: filled with the reasons why images could not be read, once each."""

    prefix = "network."

    def __init__(
        self, images: TrainingImages, config: TrainingConfig, device: torch.device, processes: Processes,
        unreadable: dict[str, None], workers: int = 0, decoded: Callable[[int, int], None] | None = None,
    ) -> None:  # fmt: skip
        self._images, self._config, self._device, self._processes = images, config, device, processes
        self._unreadable = unreadable
        self._batches: Iterator[tuple[Tensor, Tensor]] = iter(())
        self._next = -1  # the step whose batch comes next
        self._steps = steps_per_epoch(len(images.train), config.batch_size)
        self._whole_batch = min(config.batch_size, len(images.train))
        self.steps_per_reading = steps_per_reading(device)
        title = f"{config.backbone}: {len(images.classes):,} classes, {len(images.train):,} training images"
        self.curves = Curves(PANELS, "epoch", title)
        self.module = build_network(config.backbone, len(images.classes), config.seed)
        if config.cosine:
            self.module.set_submodule("fc", CosineClassifier(self.module.fc))
        self._transform = config.transform(self.module.transform)
        self.module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimiser = torch.optim.SGD(
            self.module.parameters(), config.learning_rate, config.momentum, weight_decay=config.weight_decay,
            nesterov=config.momentum > 0,
        )  # fmt: skip
        self._scaler = torch.amp.GradScaler(device.type, enabled=has_half(device))
        self._logits = in_precision(self.module, config, device)
        self._model = wrap(self._logits, processes, device).train()
        self._train, self._held_out = (
            open_feed(part, self._transform, shown, shown.in_memory, workers, has_streams(device), decoded)
            for part, shown in ((images.train, config), (images.validation, config.without_changes()))
        )

    def step(self, number: int) -> dict[str, Tensor]:
        if number != self._next:
            config, (epoch, first) = self._config, divmod(number, self._steps)
            count, epochs = len(self._images.train), range(epoch, config.epochs)
            plan = training_plan(count, config.batch_size, config.seed, epochs, first)
            send = lambda batch: to_network(batch, self._transform, self._device)  # noqa: E731
            # those of the next step are under way to the device while a step computes
            self._batches = sent_ahead(self._noting(self._train.batches(self._share(plan))), send, tuple, self._device)
        self._next = number + 1
        images, targets = next(self._batches)
        logits, loss = self._logits_and_loss(images, targets, number)
        set_rate(self.optimiser, self._config.rate(number, self._steps))
        self.optimiser.zero_grad()
        # Gradients are averaged over processes as if all had equal shares: this makes it the mean of the whole batch.
        self._scaler.scale(loss * (self._processes.count / self._whole_batch)).backward()  # type: ignore[no-untyped-call]
        self._scaler.step(self.optimiser)
        self._scaler.update()
        recognised = (logits.detach().argmax(1) == targets).sum()
        images_seen = (targets != IGNORED).sum()
        sums = torch.stack([one.to(loss.dtype) for one in (loss.detach(), recognised, images_seen)])
        total_loss, total_recognised, total_images = self._processes.sum(sums)
        return {
            "train_loss": total_loss / total_images.clamp(min=1),
            "train_top1": total_recognised / total_images.clamp(min=1),
        }

    def _logits_and_loss(self, images: Tensor, targets: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """(n, n_class), and the loss summed over the images."""
        config = self._config
        loss = partial(
            functional.cross_entropy, ignore_index=IGNORED, reduction="sum", label_smoothing=config.label_smoothing
        )
        if not config.mixup:
            logits: Tensor = self._model(images)
            return logits, loss(logits, targets)
        mixture = draw_mixture(len(images), config.mixup, config.seed, number)
        logits = self._model(mixture.blend(images))
        own, other = loss(logits, targets), loss(logits, targets[mixture.partners])
        return logits, mixture.share * own + (1 - mixture.share) * other

    def line(self, step: int, sums: Figures, count: int, seconds: float) -> Figures:
        top1, top5 = self.evaluate(self._config.size_of((step - 1) // self._steps))
        return {
            "epoch": step // self._steps,
            "step": step,
            "lr": self._config.rate(step - 1, self._steps),
            **super().line(step, sums, count, seconds),
            "val_top1": top1,
            "val_top5": top5,
            "images_per_second": count * self._whole_batch / max(1e-9, seconds),
        }

    def evaluate(self, size: int) -> tuple[float, float]:
        """Top-1 and top-5 accuracy on the held-out images at this size, 0 to 1, over all processes."""
        plan = self._share(evaluation_plan(len(self._images.validation), self._config.batch_size))
        batches = self._noting(self._held_out.batches(plan))
        self.module.eval()
        counts = count_recognised(self._logits, batches, self._transform, size, self._device)
        self.module.train()
        top1, top5, images_seen = self._processes.sum(counts).tolist()
        return top1 / max(1, images_seen), top5 / max(1, images_seen)

    def state(self) -> Tensors:
        scaler = self._scaler.state_dict()  # empty where it is not needed
        kept = {f"scaler.{key}": torch.tensor(scaler[key]) for key in ("scale", "_growth_tracker") if key in scaler}
        return super().state() | kept

    def restore(self, tensors: Tensors) -> None:
        super().restore(tensors)
        scaler = {name: tensor.item() for name, tensor in below(tensors, "scaler.").items()}
        self._scaler.load_state_dict(self._scaler.state_dict() | scaler)

    def model(self) -> None:
        """The weights are in BEST and LAST."""

    def after_line(self, folder: Path, history: Sequence[Figures]) -> None:
        details = (self._plain_network(), self._config.backbone, self._images.classes, self._transform)
        save_weights(folder / LAST, *details)
        if kept_line(history, self._images.may_choose, self._config) is history[-1]:
            save_weights(folder / BEST, *details)

    def _plain_network(self) -> nn.Module:
        """The network as files of weights hold it: with a linear classifier."""
        if not isinstance(classifier := self.module.get_submodule("fc"), CosineClassifier):
            return self.module
        kept = {name: tensor for name, tensor in self.module.state_dict().items() if not name.startswith("fc.")}
        network = build_network(self._config.backbone, len(self._images.classes))
        network.load_state_dict(kept | classifier.linear_tensors())
        return network

    def _share(self, plan: Plan) -> Plan:
        return share_of(plan, self._processes.rank, self._processes.count)

    def _noting(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self._unreadable.update(dict.fromkeys(batch.unreadable))
            yield batch


def kept_line(history: Sequence[Figures], may_choose: bool, config: TrainingConfig) -> Figures:
    """The epoch whose weights are BEST: that of the highest top-1, the first of equals, once images have their full
    size; the last one where the images at hand may not choose (see `TrainingImages.may_choose`)."""
    if not may_choose:
        return history[-1]
    whole = [line for line in history if config.size_of(int(line["epoch"]) - 1) == config.image_size]
    return max(whole or history, key=lambda line: line["val_top1"])


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
    sets: Mapping[str, ImageSet[Loadable]], split: CategorySplit, config: TrainingConfig, out: Path,
    device: str = "auto", workers: int = 0, options: RunOptions = RunOptions(),  # noqa: B008 - frozen
    report: Report | None = None, decoded: Callable[[int, int], None] | None = None, held_out_seed: int | None = None,
) -> TrainingResult:  # fmt: skip
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
        every = steps_per_epoch(len(images.train), config.batch_size)
        trained = train(
            out, identity, lambda: BackboneTrainee(images, config, place, processes, unreadable, workers, decoded),
            config.epochs * every, config.epochs_per_line * every, options, report, processes, products=(BEST, LAST),
        )  # fmt: skip
    history, best = trained.history, kept_line(trained.history, images.may_choose, config)
    return TrainingResult(
        weights=str(trained.folder / BEST), backbone=config.backbone, classes=len(images.classes),
        train_images=len(images.train), val_images=len(images.validation), held_out=images.held_out,
        epochs=int(history[-1]["epoch"]), steps=trained.steps, seconds=trained.seconds,
        images_per_second=sum(line["images_per_second"] for line in history) / len(history),
        train_loss=history[-1]["train_loss"], val_top1=history[-1]["val_top1"], val_top5=history[-1]["val_top5"],
        best_epoch=int(best["epoch"]), best_val_top1=best["val_top1"], best_val_top5=best["val_top5"],
        unreadable=list(unreadable),
    )  # fmt: skip
