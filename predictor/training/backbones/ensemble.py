"""Several trainings of one network that differ by their seed, joined into one network with the activations of all."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actstore.backbones.construction import JOINED_BY, MOST, construct
from actstore.backbones.loading import load_backbone
from actstore.backbones.weights import Weights, fit_weights, read_weights, save_weights
from actstore.compute.device import has_streams, parse_device
from actstore.errors import InvalidInputError
from actstore.images.image_set import ImageSet, Loadable
from predictor.protocol.category_split import CategorySplit
from predictor.training.backbones.accuracy import count_recognised
from predictor.training.backbones.batches import open_feed
from predictor.training.backbones.config import TrainingConfig
from predictor.training.backbones.images import TrainingImages, evaluation_plan, select_images
from predictor.training.backbones.trainee import BEST, LAST
from predictor.training.backbones.training import TrainingResult, train_backbone
from predictor.training.loop import Report, RunOptions, discard
from predictor.training.processes import joined_processes
from predictor.training.run_files import CHECKPOINT

Tell = tuple[Report | None, Callable[[int, int], None] | None]  # of steps, and of images decoded


@dataclass(frozen=True)
class EnsembleResult:
    """Accuracies of the joined network, 0 to 1, on images that none of its members was trained on."""

    weights: str
    backbone: str
    classes: int
    val_images: int
    held_out: str
    val_top1: float
    val_top5: float
    members: list[TrainingResult]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        joined = (
            f"{self.weights}: {self.backbone}, with the activations of all; top-1 {self.val_top1:.2%}, "
            f"top-5 {self.val_top5:.2%} on {self.val_images:,} held-out images ({self.held_out})"
        )
        return "\n".join([*map(str, self.members), joined])


def train_ensemble(
    sets: Mapping[str, ImageSet[Loadable]],
    split: CategorySplit,
    config: TrainingConfig,
    count: int,
    out: Path,
    device: str,
    workers: int,
    options: RunOptions,
    tell: Callable[[int], Tell],
) -> EnsembleResult | None:
    """Train the members in out/1, out/2, … with config.seed, config.seed + 1, …, one after another, and join them.

    Under torchrun every process calls this, and the first has the result. tell: who is told of member 0, 1, …
    """
    members = [out / str(number + 1) for number in range(count)]
    with joined_processes(parse_device(device)) as (processes, _):
        if processes.is_first and options.restart:
            for folder in (out / str(number + 1) for number in range(MOST)):
                discard(folder, (BEST, LAST))
            (out / BEST).unlink(missing_ok=True)
        processes.wait()
        going_on = replace(options, restart=False)  # a repeated restart would lose what was trained since
        results = []
        for number, folder in enumerate(members):
            own = replace(config, seed=config.seed + number)
            rest = (device, workers, going_on, *tell(number), config.seed)
            results.append(train_backbone(sets, split, own, folder, *rest))
            gc.collect()  # a training holds its images and workers in a circle of references
        if not processes.is_first:
            return None
    name = join_members([folder / BEST for folder in members], out / BEST)
    images = select_images(sets, split, config.seed)
    return measure_joined(name, out / BEST, images, config, results, device, workers)


def refuse_other_kind(out: Path, count: int) -> None:
    """Both kinds of training write OUT/best.safetensors: one must not replace the other's."""
    if count > 1 and (out / CHECKPOINT).exists():
        raise InvalidInputError(f"{out} holds the training of one network; choose another --out for an ensemble")
    if count == 1 and (out / "1" / CHECKPOINT).exists():
        raise InvalidInputError(f"{out} holds an ensemble; choose another --out for one network, or give --ensemble")


def join_members(members: Sequence[Path], out: Path) -> str:
    """members: files of weights of one network, trained on the same classes. The logits of what is written to `out`
    are the mean of theirs; its name is returned."""
    files = [read_weights(path) for path in members]
    first = files[0]
    for other in files[1:]:
        if (other.backbone, other.classes, other.transform) != (first.backbone, first.classes, first.transform):
            raise InvalidInputError(
                f"{other.path} must be of the same network, classes and image size as {first.path}; train both alike"
            )
    name = JOINED_BY.join(str(file.backbone) for file in files)
    network = construct(name).module
    joined = Weights(out, _joined_tensors([file.tensors for file in files]), name, first.classes, first.transform)
    fit_weights(network, joined, name, "fc")
    save_weights(out, network, name, first.classes, first.transform)
    return name


def _joined_tensors(members: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    layers = {
        f"networks.{place}.{name}": tensor
        for place, tensors in enumerate(members)
        for name, tensor in tensors.items()
        if not name.startswith("fc.")
    }
    weight = torch.cat([tensors["fc.weight"] for tensors in members], 1) / len(members)  # (n_class, members * dim)
    bias = torch.stack([tensors["fc.bias"] for tensors in members]).mean(0)
    return layers | {"fc.weight": weight, "fc.bias": bias}


def measure_joined(
    name: str,
    weights: Path,
    images: TrainingImages,
    config: TrainingConfig,
    members: list[TrainingResult],
    device: str,
    workers: int,
) -> EnsembleResult:
    backbone, place = load_backbone(name, weights), parse_device(device)
    network, transform = backbone.module.to(place), backbone.transform
    feed = open_feed(images.validation, transform, config.without_changes(), False, workers, has_streams(place))
    batches = feed.batches(evaluation_plan(len(images.validation), config.batch_size))
    top1, top5, seen = count_recognised(network, batches, transform, transform.crop, place).tolist()
    return EnsembleResult(
        weights=str(weights),
        backbone=name,
        classes=len(images.classes),
        val_images=len(images.validation),
        held_out=images.held_out,
        val_top1=top1 / max(1, seen),
        val_top5=top5 / max(1, seen),
        members=members,
    )
