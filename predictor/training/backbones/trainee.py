"""A backbone and its classifier as a trainee: a step, a pass over the held-out images, and the weights it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from actstore.backbones.construction import build_network
from actstore.backbones.network import Network
from actstore.backbones.weights import save_weights
from actstore.compute.device import has_half, has_streams, sent_ahead, steps_per_reading
from actstore.storage.tensor_file import below
from predictor.training.backbones.accuracy import count_recognised
from predictor.training.backbones.batches import IGNORED, Batch, open_feed, to_network
from predictor.training.backbones.config import TrainingConfig
from predictor.training.backbones.cosine import CosineClassifier
from predictor.training.backbones.distributed import wrap
from predictor.training.backbones.images import (
    Plan,
    TrainingImages,
    evaluation_plan,
    share_of,
    steps_per_epoch,
    training_plan,
)
from predictor.training.backbones.mixup import draw_mixture
from predictor.training.curves import Curves, Panel
from predictor.training.processes import Processes
from predictor.training.trainee import Figures, Tensors, Trainee, set_rate

BEST, LAST = "best.safetensors", "last.safetensors"
PRECISION = {"float32": torch.float32, "bfloat16": torch.bfloat16}
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


class SixteenBits(nn.Module):
    """A network whose convolutions compute in 16 bits; weights, their updates and the classifier stay in 32."""

    def __init__(self, network: Network, precision: torch.dtype) -> None:
        super().__init__()
        self.network, self._precision = network, precision

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, height, width) -> (n, n_class)"""
        with torch.autocast(images.device.type, self._precision):
            activations = self.network.features(images)
        logits: Tensor = self.network.fc(activations.float())
        return logits


def in_precision(network: Network, config: TrainingConfig, device: torch.device) -> nn.Module:
    """What is trained: the network itself, or its convolutions in 16 bits, as the settings and the device ask."""
    precision = torch.float16 if has_half(device) else PRECISION[config.precision]
    return network if precision == torch.float32 else SixteenBits(network, precision)


class BackboneTrainee(Trainee):
    """unreadable: filled with the reasons why images could not be read, once each."""

    prefix = "network."

    def __init__(
        self,
        images: TrainingImages,
        config: TrainingConfig,
        device: torch.device,
        processes: Processes,
        unreadable: dict[str, None],
        workers: int = 0,
        decoded: Callable[[int, int], None] | None = None,
    ) -> None:
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
            self._batches = self._sent(self._noting(self._train.batches(self._share(self._plan(number)))))
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

    def _plan(self, first: int) -> Plan:
        config, (epoch, step) = self._config, divmod(first, self._steps)
        return training_plan(len(self._images.train), config.batch_size, config.seed, range(epoch, config.epochs), step)

    def _share(self, plan: Plan) -> Plan:
        return share_of(plan, self._processes.rank, self._processes.count)

    def _sent(self, batches: Iterator[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and targets on the device, those of the next step under way while a step computes."""
        send = lambda batch: to_network(batch, self._transform, self._device)  # noqa: E731
        return sent_ahead(batches, send, tuple, self._device)

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
