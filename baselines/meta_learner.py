"""What learners of tasks of images have in common: they score queries by a task's support, and learn from errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from actstore.backbones.construction import seeded
from actstore.backbones.network import Transform
from actstore.backbones.resnet import Simple
from actstore.errors import InvalidInputError
from baselines.image_tasks import as_images, image_transform
from predictor.protocol.episodes import Examples
from predictor.protocol.method import EpisodeMethod

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
        with torch.no_grad(), evaluating(self):
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
    def task_logits(self, support: Tensor, queries: Tensor) -> Tensor:
        """Of one task: (way, shots, 3, s, s) and (n, 3, s, s) -> (n, way)."""

    @abstractmethod
    def _logits(self, weights: Any, images: Tensor) -> Tensor:
        """(n, 3, s, s) -> (n, way)"""

    def _loss(self, weights: Any, images: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self._logits(weights, images), targets)

    def scores(self, support: Tensor, queries: Tensor) -> Tensor:
        return torch.stack([self.task_logits(shown, asked) for shown, asked in zip(support, queries, strict=True)])


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

    def embed(self, pixels: Tensor) -> Tensor:
        """(n, s, s, 3) uint8 -> (n, dim) on the CPU."""
        device = next(self.parameters()).device
        with torch.inference_mode(), evaluating(self):
            parts = [
                self.network.features(as_images(pixels[start : start + EMBED_BATCH], self.transform, device)).cpu()
                for start in range(0, len(pixels), EMBED_BATCH)
            ]
        return torch.cat(parts)

    def prepared(self, examples: Examples) -> tuple[Examples, EpisodeMethod]:
        return Examples(self.embed(examples.values), examples.index, examples.labels), Compared(self)


class Compared:
    """An embedding learner on embeddings that are there already."""

    def __init__(self, learner: EmbeddingLearner) -> None:
        self.name = learner.name
        self._learner = learner

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        device = next(self._learner.parameters()).device
        with torch.inference_mode(), evaluating(self._learner):
            return self._learner.compare(support.to(device), queries.to(device)).cpu()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """In evaluation mode, and back to what it was."""
    before = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(before)
