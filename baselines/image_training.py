"""Further training of a whole backbone on images, as the triplet network and fine-tuning need it."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from actstore.backbones.loading import Backbone
from actstore.backbones.network import Network
from actstore.backbones.weights import save_weights
from actstore.compute.device import has_streams, steps_per_reading
from actstore.errors import InvalidInputError
from actstore.images.image_set import ImageSet, Loadable
from actstore.streams.sampling import epoch_order
from baselines.large_sample import RowTraining
from predictor.protocol.category_split import CategorySplit
from predictor.training import Report, RunOptions, Tensors, Trained, Trainee, train
from predictor.training.backbones.batches import Batch, open_feed, to_network
from predictor.training.backbones.config import TrainingConfig
from predictor.training.backbones.images import EVALUATION, LabelledImages, Plan, Rows, images_of_classes
from predictor.training.trainee import cosine

WEIGHTS, STORE = "weights.safetensors", "store.zarr"  # in the folder of a training
MEASURED = 64  # images that tell how long activations are, and so what steps the classifier can take
ROW_RATE = 0.2  # of the classifier's rate on stored activations: a few images a step would scatter it at the whole


@dataclass(frozen=True)
class ImageConfig:
    """batch_size: images of a step. Images are moved by up to a sixteenth of their side, and mirrored where `flip`.
    learning_rate: of the layers below the classifier; the classifier's own is a share of that of `RowTraining`."""

    steps: int = 2000
    batch_size: int = 128
    learning_rate: float = 0.003
    weight_decay: float = 1e-4
    momentum: float = 0.9
    flip: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 2:
            raise InvalidInputError(
                f"expected at least 1 step and batches of 2 or more, got {self.steps} and {self.batch_size}"
            )


@dataclass(frozen=True)
class ImageRun:
    """How a training is run: what comes out is the same. decoded: told of (images done, images in all)."""

    device: torch.device = torch.device("cpu")  # noqa: RUF009 - a constant
    workers: int = 0
    options: RunOptions = RunOptions()  # noqa: RUF009 - frozen
    report: Report | None = None
    decoded: Callable[[int, int], None] | None = None


class ImageTrainee(Trainee):
    """All layers of a network under training by SGD, at a rate that falls to 0. classes: of its classifier's rows."""

    prefix = "network."

    def __init__(
        self, backbone: Backbone, images: LabelledImages, classes: Sequence[str] | None, config: ImageConfig,
        run: ImageRun,
    ) -> None:  # fmt: skip
        self._backbone, self._classes, self._config, self._device = backbone, classes, config, run.device
        self.steps_per_reading = steps_per_reading(run.device)
        self.module = self.network = network = trainable(backbone)
        self.network.to(run.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        rows = list(network.fc.parameters())
        layers = [parameter for name, parameter in network.named_parameters() if not name.startswith("fc.")]
        self.optimiser = torch.optim.SGD(
            [{"params": layers}, {"params": rows}], config.learning_rate, config.momentum,
            weight_decay=config.weight_decay,
        )  # fmt: skip
        decoding = _decoding(backbone, config)
        pin = has_streams(run.device)
        self._feed = open_feed(images, backbone.transform, decoding, True, run.workers, pin, run.decoded)
        few = np.unique(np.linspace(0, len(images) - 1, MEASURED).astype(np.int64))
        mean_square = float(self.activations(few)[0].square().sum(1).mean())
        self._rates = config.learning_rate, ROW_RATE * RowTraining().rate(0, mean_square, len(rows[0]))
        self._batches: Iterator[Batch] = iter(())
        self._next = -1  # the step whose batch comes next

    @abstractmethod
    def plan(self, first: int) -> Plan:
        """The images of step `first` and all steps after it."""

    @abstractmethod
    def loss(self, images: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]: ...

    def step(self, number: int) -> dict[str, Tensor]:
        if number != self._next:
            self._batches = self._feed.batches(self.plan(number))
        self._next = number + 1
        images, targets = to_network(next(self._batches).readable(), self._backbone.transform, self._device)
        loss, figures = self.loss(images, targets)
        for group, rate in zip(self.optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate * cosine(number, self._config.steps)
        self.descend(loss)
        return {"loss": loss.detach(), **figures}

    @torch.no_grad()
    def activations(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """(n, dim) and targets (n,) of those of these images that can be read, as they are before the training."""
        self.network.eval()
        parts = np.array_split(rows, -(-len(rows) // MEASURED))
        found = []
        for batch in self._feed.batches(iter([(EVALUATION, part) for part in parts])):
            images, targets = to_network(batch.readable(), self._backbone.transform, self._device)
            found.append((self.network.features(images).float(), targets))
        self.network.train()
        for module in self.network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()  # a short training's batches would leave its averages behind the weights
        return torch.cat([part for part, _ in found]), torch.cat([part for _, part in found])

    def model(self) -> Tensors:
        """The classifier; the whole network is in WEIGHTS."""
        return {"weight": self.network.fc.weight, "bias": self.network.fc.bias}

    def keep(self, folder: Path) -> None:
        save_weights(folder / WEIGHTS, self.network, self._backbone.name, self._classes, self._backbone.transform)


def train_images(
    folder: Path, identity: dict[str, Any], make: Callable[[], ImageTrainee], steps: int, run: ImageRun
) -> Trained:
    return train(folder, identity, make, steps, min(100, steps), run.options, run.report)


def trainable(backbone: Backbone) -> Network:
    if not isinstance(backbone.module, Network):
        raise InvalidInputError(
            f"only networks with `features` and `fc`, such as resnet50 or small, can be trained here, "
            f"got {backbone.name}"
        )
    if backbone.transform.channels != 3:
        raise InvalidInputError(f"one network can be trained here, not several side by side, got {backbone.name}")
    return backbone.module


def extend_classifier(network: Network, weight: Tensor, bias: Tensor, more: int) -> None:
    """The classifier becomes these rows and `more` rows of zeros."""
    layer = nn.Linear(network.dim, len(weight) + more, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.copy_(torch.cat([weight, weight.new_zeros(more, network.dim)]))
        layer.bias.copy_(torch.cat([bias, bias.new_zeros(more)]))
    network.fc = layer


def images_of(sets: Mapping[str, ImageSet[Loadable]], names: Sequence[str]) -> LabelledImages:
    """Training images of these classes, in the order of their source; targets are places among the names."""
    if "train" not in sets:
        raise InvalidInputError(f"expected images in a split 'train', got {', '.join(sets) or 'no images at all'}")
    CategorySplit(tuple(names)).require_known(sets["train"].classes)
    return images_of_classes(sets["train"], names)


def identify(
    method: str, backbone: Backbone, config: ImageConfig, split: CategorySplit, images: LabelledImages, **more: Any
) -> dict[str, Any]:
    """What a folder remembers of a training."""
    listing = hashlib.sha256("".join(f"{item.id}\n{item.label}\n" for item in images.items).encode()).hexdigest()
    return {
        "method": method,
        "config": {**asdict(config), **more},
        "split": split.to_json(),
        "source": {"images": len(images), "listing": listing},
        "backbone": {"name": backbone.name, "weights": backbone.weights_sha256},
    }


def _decoding(backbone: Backbone, config: ImageConfig) -> TrainingConfig:
    size = backbone.transform.crop
    return TrainingConfig(
        backbone=backbone.name, image_size=size, epochs=1, batch_size=config.batch_size,
        learning_rate=config.learning_rate, schedule="cosine", augment="shift", shift=size // 16, flip=config.flip,
        seed=config.seed,
    )  # fmt: skip


def epoch_rows(images: int, batch: int, seed: int, number: int) -> tuple[int, Rows]:
    """The epoch of a step and its rows: every image once per epoch, but for a remainder."""
    epoch, place = divmod(number, max(1, images // batch))
    return epoch, epoch_order(images, seed, epoch)[place * batch : (place + 1) * batch]
