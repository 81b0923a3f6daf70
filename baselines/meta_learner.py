"""What learners of tasks of images have in common: they score queries by a task's support, and learn from errors.

Tasks are drawn by the planner that all methods share, from pixels that are decoded once and kept in memory as bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from actstore.backbones.architectures import Simple
from actstore.backbones.construction import seeded
from actstore.backbones.network import Transform
from actstore.errors import InvalidInputError
from actstore.images.image_set import ImageSet, Loadable
from actstore.layout.class_index import ClassIndex
from predictor.protocol.episodes import Examples, TaskSize, plan_tasks
from predictor.protocol.method import EpisodeMethod
from predictor.training.backbones.batches import MEMORY_LIMIT, Batch, StreamedImages, to_network
from predictor.training.backbones.config import choose_preset
from predictor.training.backbones.images import LabelledImages

Decoded = Callable[[int, int], None]  # images done, images in all


def image_transform(size: int) -> Transform:
    """The whole image, scaled: few-shot learning crops nothing away."""
    return replace(Simple.transform, resize=size, crop=size)


def decode_classes(
    sets: Mapping[str, ImageSet[Loadable]],
    classes: Sequence[str],
    size: int,
    workers: int = 0,
    decoded: Decoded | None = None,
) -> Examples:
    """All images of these classes, pooled over the splits -> values (images, size, size, 3) uint8.

    In the same order as `gather_classes` gives a store's rows: tasks of the same number show the same images.
    An image that cannot be read is an error, as leaving it out would shift the others.
    """
    target_of: dict[str | None, int] = {name: target for target, name in enumerate(classes)}
    items = [item for images in sets.values() for item in images.items if item.label in target_of]
    items.sort(key=lambda item: target_of[item.label])  # by class, then by split, then as in the split
    targets = np.array([target_of[item.label] for item in items], np.int64)
    if missing := set(range(len(classes))) - set(targets.tolist()):
        name = classes[min(missing)]
        raise InvalidInputError(f"class {name!r} has no images; choose the split that belongs to these images")
    if len(items) * 3 * size**2 > MEMORY_LIMIT:
        raise InvalidInputError(
            f"{len(items):,} images of {size}x{size} need more than {MEMORY_LIMIT:,} bytes; use a smaller image size"
        )
    config = choose_preset("quick", image_size=size)  # decoding without augmentation reads none of its other values
    source = StreamedImages(LabelledImages(items, targets), image_transform(size), config, workers)
    whole = source.decode_all(len(items), decoded)
    if whole.unreadable:
        raise InvalidInputError(f"{whole.unreadable[0]}; remove it, or repair it")
    return Examples(whole.pixels, ClassIndex(classes, targets), np.arange(len(classes)))


def draw_tasks(examples: Examples, size: TaskSize, seed: int, numbers: range) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels of support (tasks, way, shots, s, s, 3) and queries (tasks, n, s, s, 3), and targets (tasks, n)."""
    batch = plan_tasks(examples.index, examples.labels, size, seed, numbers)
    support, queries = (examples.values[torch.from_numpy(rows)] for rows in (batch.support, batch.queries))
    return support, queries, torch.from_numpy(batch.targets)


def as_images(pixels: Tensor, transform: Transform, device: torch.device) -> Tensor:
    """(…, s, s, 3) uint8 -> (…, 3, s, s) float32, normalised, on the device."""
    flat = pixels.flatten(0, -4)
    images, _ = to_network(Batch(flat, torch.empty(0)), transform, device)
    return images.view(*pixels.shape[:-3], *images.shape[1:])


EMBED_BATCH = 500


class MetaLearner(nn.Module, ABC):
    """A network that learns to learn. name: as in the paper's table. way: the only number of categories that it can
    tell apart, where its classifier was trained for one."""

    name: str
    transform: Transform
    way: int | None = None

    @abstractmethod
    def scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """Images (tasks, way, shots, 3, s, s) and (tasks, n, 3, s, s) -> logits (tasks, n, way), differentiable."""

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """Pixels (tasks, way, shots, s, s, 3) and (tasks, n, s, s, 3), uint8 -> (tasks, n, way) on the CPU."""
        device = next(self.parameters()).device
        if self.way is not None and support.shape[1] != self.way:
            raise InvalidInputError(
                f"{self.name} was trained for {self.way}-way tasks and can do no other, got {support.shape[1]}-way; "
                f"measure it with --way {self.way}, or train one for this"
            )
        self.eval()
        with torch.no_grad():
            shown, asked = (as_images(pixels, self.transform, device) for pixels in (support, queries))
            return self.scores(shown, asked).cpu()

    def prepared(self, examples: Examples) -> tuple[Examples, EpisodeMethod]:
        """What to run tasks on, and by which method: pixels and itself, or what was computed once for all tasks."""
        return examples, self


class AdaptingLearner(MetaLearner):
    """A learner whose weights a task's support changes, by the gradients of its loss."""

    def __init__(self, image_size: int, way: int) -> None:
        super().__init__()
        self.transform, self.way = image_transform(image_size), way

    @abstractmethod
    def adapt(self, images: Tensor, targets: Tensor) -> Any:
        """The weights for one task, of its examples (n, 3, s, s) and their categories (n,)."""

    @abstractmethod
    def _logits(self, weights: Any, images: Tensor) -> Tensor:
        """(n, 3, s, s) -> (n, way)"""

    def _loss(self, weights: Any, images: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self._logits(weights, images), targets)

    def scores(self, support: Tensor, queries: Tensor) -> Tensor:
        way, shots = support.shape[1:3]
        targets = torch.arange(way, device=support.device).repeat_interleave(shots)
        tasks = zip(support.flatten(1, 2), queries, strict=True)
        return torch.stack([self._logits(self.adapt(shown, targets), asked) for shown, asked in tasks])


class EmbeddingLearner(MetaLearner):
    """A learner that compares embeddings, so that an image is embedded once however many tasks it is in."""

    def __init__(self, image_size: int, width: int, seed: int) -> None:
        super().__init__()
        self.transform = image_transform(image_size)
        with seeded(seed):
            self.network = Simple(1, width)
        del self.network.fc  # only the features take part

    @abstractmethod
    def compare(self, support: Tensor, queries: Tensor) -> Tensor:
        """Embeddings (tasks, way, shots, dim) and (tasks, n, dim) -> logits (tasks, n, way)."""

    def scores(self, support: Tensor, queries: Tensor) -> Tensor:
        tasks, way, shots = support.shape[:3]
        images = torch.cat([support.flatten(0, 2), queries.flatten(0, 1)])  # one pass: they share batch statistics
        embedded = self.network.features(images)
        shown, asked = embedded[: tasks * way * shots], embedded[tasks * way * shots :]
        return self.compare(shown.view(tasks, way, shots, -1), asked.view(tasks, queries.shape[1], -1))

    @torch.inference_mode()
    def prepared(self, examples: Examples) -> tuple[Examples, EpisodeMethod]:
        self.eval()
        device = next(self.parameters()).device
        embedded = [
            self.network.features(as_images(pixels, self.transform, device)).cpu()
            for pixels in torch.split(examples.values, EMBED_BATCH)
        ]
        return Examples(torch.cat(embedded), examples.index, examples.labels), Compared(self)


class Compared:
    """An embedding learner on embeddings that are there already."""

    def __init__(self, learner: EmbeddingLearner) -> None:
        self.name, self._learner = learner.name, learner

    @torch.inference_mode()
    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        device = next(self._learner.parameters()).device
        return self._learner.eval().compare(support.to(device), queries.to(device)).cpu()
