"""A network under training, with all that a checkpoint has to hold."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actstore.backbones.construction import build_network
from actstore.backbones.distributed import wrap
from actstore.backbones.presets import TrainingConfig
from actstore.backbones.schedule import learning_rate
from actstore.backbones.training_batches import Batch
from actstore.backbones.training_checkpoint import TrainingState, load_checkpoint, save_checkpoint
from actstore.backbones.training_data import TrainingImages, steps_per_epoch
from actstore.backbones.training_log import draw_curves, write_log
from actstore.backbones.training_step import Machine, is_finite, make_optimiser, train_step
from actstore.backbones.weights import save_weights
from actstore.errors import ActstoreError
from actstore.processes import Processes

BEST, LAST, LOG, CURVES = "best.safetensors", "last.safetensors", "log.csv", "curves.png"
_SECONDS_PER_DRAWING = 30.0


class DivergedError(ActstoreError):
    """The loss or a weight is no longer a number."""


class Run:
    """Weights, optimiser and progress of one training; only the first of several processes writes."""

    def __init__(
        self,
        images: TrainingImages,
        config: TrainingConfig,
        out: Path,
        identity: Mapping[str, Any],
        processes: Processes,
        device: torch.device,
    ) -> None:
        self._images, self._config, self._out, self._identity = images, config, out, identity
        self._began = self._saved = time.monotonic()
        self._drawn = -math.inf
        self._unread: list[Tensor] = []
        self._rate = 0.0
        self.steps = steps_per_epoch(len(images.train), config.batch_size)
        self.whole_batch = min(config.batch_size, len(images.train))
        self.network = build_network(config.backbone, len(images.classes), config.seed)
        self.network.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.machine = Machine(device, processes, config.transform(self.network.transform))
        self.state = TrainingState()
        self._optimiser = make_optimiser(self.network, config)
        self._scaler = torch.amp.GradScaler("cuda", enabled=self.machine.is_mixed)
        self._model = wrap(self.network, processes, device)

    def resume(self) -> None:
        """From the last checkpoint, if there is one."""
        self.state = load_checkpoint(self._out, self._identity, self.network, self._optimiser) or self.state
        if self.state.scaler and self.machine.is_mixed:
            self._scaler.load_state_dict(self.state.scaler)

    @property
    def is_finished(self) -> bool:
        return self.state.epoch == self._config.epochs

    @property
    def loss(self) -> float:
        """Mean over the images of this epoch whose losses are read."""
        return self.state.loss_sum / max(1.0, self.state.images)

    def step(self, batch: Batch) -> None:
        """Learn from this process's share of the next batch."""
        self._model.train()
        number = self.state.epoch * self.steps + self.state.step
        self._rate = learning_rate(self._config, number, self.steps)
        for group in self._optimiser.param_groups:
            group["lr"] = self._rate
        losses = train_step(
            self._model, self._optimiser, self._scaler, batch, self.whole_batch, self._config.label_smoothing,
            self.machine,
        )  # fmt: skip
        self._unread.append(losses)
        self.state.step += 1

    def read_losses(self) -> None:
        """Into the sums of the epoch, in order: it does not matter how often they are read."""
        for loss, correct, images in torch.stack(self._unread).tolist() if self._unread else ():
            self.state.loss_sum += loss
            self.state.correct += correct
            self.state.images += images
        self._unread = []
        if not math.isfinite(self.state.loss_sum):
            self._refuse("loss")

    def count_seconds(self, of_epoch: bool = True) -> None:
        """Time since the last call; what is not of the epoch does not count for images/s."""
        now = time.monotonic()
        self.state.seconds += now - self._began
        self.state.epoch_seconds += now - self._began if of_epoch else 0.0
        self._began = now

    def is_checkpoint_due(self, seconds: float) -> bool:
        return self.machine.processes.is_first and time.monotonic() - self._saved >= seconds

    def save(self) -> None:
        """A checkpoint; never one of weights that are lost already."""
        if not is_finite(self.network):
            self._refuse("weights")
        if self.machine.processes.is_first:
            self.state.scaler = self._scaler.state_dict()
            save_checkpoint(self._out, self._identity, self.state, self.network, self._optimiser)
        self._saved = time.monotonic()

    def end_epoch(self, top1: float, top5: float) -> None:
        """Keep the weights, then the checkpoint: killed in between, the rest of the epoch is computed again."""
        if not is_finite(self.network):
            self._refuse("weights")
        self.state.end_epoch(self._rate, self.steps, top1, top5)
        if self.machine.processes.is_first:
            details = (self.network, self._config.backbone, self._images.classes, self.machine.transform)
            save_weights(self._out / LAST, *details)
            if self.state.best()["epoch"] == self.state.epoch:
                save_weights(self._out / BEST, *details)
        self.save()
        self.write_reports()

    def write_reports(self) -> None:
        """The log after every epoch, the plot at the end and now and then."""
        if not self.machine.processes.is_first:
            return
        write_log(self._out / LOG, self.state.history)
        if self.is_finished or time.monotonic() - self._drawn > _SECONDS_PER_DRAWING:
            n_class, n_train = len(self._images.classes), len(self._images.train)
            title = f"{self._config.backbone}: {n_class:,} classes, {n_train:,} training images"
            draw_curves(self._out / CURVES, self.state.history, title)
            self._drawn = time.monotonic()

    def _refuse(self, what: str) -> None:
        raise DivergedError(
            f"the {what} became infinite or no number in epoch {self.state.epoch + 1}, step {self.state.step}, at "
            f"learning rate {self._rate:.3g}; the last good checkpoint is kept in {self._out}; "
            "start again with a lower --lr and --restart"
        )
