"""Learners of tasks of images: they score queries by a task's support, and learn from errors.

Tasks are drawn by the planner that all methods share, from pixels that are decoded once and kept in memory as bytes.
Prototypical and matching networks compare embeddings; MAML and the LSTM meta-learner change weights.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, replace_all_batch_norm_modules_
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
Weights = dict[str, Tensor]
State = tuple[Tensor, Tensor, Tensor, Tensor]  # of the first layer: hidden, cell; last forget and input gate (n, 1)

EMBED_BATCH = 500
FIRST_SHARPNESS = 10.0  # of a matching network
SCALE = 10.0  # p of the LSTM's preprocessing: magnitudes below exp(-p) count as small
FIRST_FORGET = 0.9999  # share of a weight that an untrained optimiser keeps


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


class PrototypicalNetwork(EmbeddingLearner):
    """Prototypical networks: scores are negative squared Euclidean distances to the means of embedded examples.

    Snell, Swersky and Zemel, Prototypical Networks for Few-shot Learning, NIPS 2017.
    """

    name = "ProtoNet"

    def compare(self, support: Tensor, queries: Tensor) -> Tensor:
        prototypes = support.mean(2)  # (tasks, way, dim)
        differences = queries[:, :, None] - prototypes[:, None]  # (tasks, n, way, dim)
        return -differences.square().sum(3)


class MatchingNetwork(EmbeddingLearner):
    """A query attends to the support by cosine; attention adds up per category.

    Vinyals, Blundell, Lillicrap, Kavukcuoglu and Wierstra, Matching Networks for One Shot Learning, NIPS 2016.
    The attention's sharpness is learnt, as cosines alone lie between -1 and 1 and leave the softmax nearly uniform.

    full_context: embeddings also see the rest of the support, by the LSTMs of the paper's appendix. Published rows are
    of such embeddings, so that one without them has a name that stands beside none.
    """

    def __init__(self, image_size: int, width: int, seed: int, full_context: bool = False, readings: int = 5) -> None:
        super().__init__(image_size, width, seed)
        self.name = "Matching Network" if full_context else "Matching Network (no full context)"
        self.sharpness = nn.Parameter(torch.tensor(FIRST_SHARPNESS))
        with seeded(seed + 1):
            self.context = FullContext(width, readings) if full_context else None

    def compare(self, support: Tensor, queries: Tensor) -> Tensor:
        """Logarithms of the attention that each category gets."""
        way, shots = support.shape[1:3]
        examples = support.flatten(1, 2)  # (tasks, way * shots, dim)
        if self.context is not None:
            examples, queries = self.context(examples, queries)
        cosines = functional.normalize(queries, dim=-1) @ functional.normalize(examples, dim=-1).mT
        attention = (self.sharpness * cosines).log_softmax(2)  # (tasks, n, way * shots)
        return attention.view(*attention.shape[:2], way, shots).logsumexp(3)


class FullContext(nn.Module):
    """Examples read each other in both directions; a query reads the examples `readings` times."""

    def __init__(self, dim: int, readings: int) -> None:
        super().__init__()
        self._readings = readings
        self.among_examples = nn.LSTM(dim, dim, batch_first=True, bidirectional=True)
        self.reader = nn.LSTMCell(2 * dim, dim)

    def forward(self, examples: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        """(tasks, m, dim) and (tasks, n, dim) -> the same shapes."""
        forth, back = self.among_examples(examples)[0].chunk(2, dim=2)
        seen = forth + back + examples  # (tasks, m, dim)
        return seen, self._read(seen, queries)

    def _read(self, examples: Tensor, queries: Tensor) -> Tensor:
        hidden, cell = queries, torch.zeros_like(queries).flatten(0, 1)
        for _ in range(self._readings):
            attention = (hidden @ examples.mT).softmax(2)  # (tasks, n, m)
            seen = torch.cat([queries, attention @ examples], dim=2).flatten(0, 1)  # (tasks * n, 2 dim)
            step, cell = self.reader(seen, (hidden.flatten(0, 1), cell))
            hidden = step.view_as(queries) + queries
        return hidden


class Maml(AdaptingLearner):
    """MAML: weights from which a few steps of gradient descent on a task's support solve the task.

    Finn, Abbeel and Levine, Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks, ICML 2017. As there,
    batch normalisation always uses the statistics of the batch at hand, so queries of a task are scored together.

    order: first leaves the change of the inner gradients out of the meta-gradient, second has it in.
    """

    name = "MAML"

    def __init__(
        self,
        image_size: int,
        width: int,
        seed: int,
        way: int,
        order: Literal["first", "second"] = "second",
        inner_steps: int = 5,
        inner_rate: float = 0.1,
    ) -> None:
        super().__init__(image_size, way)
        with seeded(seed):
            self.network = replace_all_batch_norm_modules_(Simple(way, width))
        self._order, self._steps, self._rate = order, inner_steps, inner_rate

    def adapt(self, images: Tensor, targets: Tensor) -> Weights:
        weights: Weights = dict(self.network.named_parameters())
        for _ in range(self._steps):
            gradients = grad(self._loss)(weights, images, targets)
            if self._order == "first":
                gradients = {name: gradient.detach() for name, gradient in gradients.items()}
            weights = {name: weight - self._rate * gradients[name] for name, weight in weights.items()}
        return weights

    def _logits(self, weights: Weights, images: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.network, weights, (images,))
        return logits


class MetaLstm(AdaptingLearner):
    """Gradient descent as the cell of an LSTM, whose gates learn how fast to go and to forget.

    Ravi and Larochelle, Optimization as a Model for Few-Shot Learning, ICLR 2017. As there: two layers whose weights
    all coordinates share, gradients and losses preprocessed by logarithm and sign, the first cell state learnt, and no
    gradient through the learner's gradients. Batch normalisation uses the statistics of the batch at hand.

    The network's weights are the cell state; `first` is where every task starts.
    first_rate: the input gate before training, which is the learning rate of the learner's first steps.
    """

    name = "Meta-Learner LSTM"

    def __init__(
        self, image_size: int, width: int, seed: int, way: int, inner_steps: int = 5, hidden: int = 20,
        first_rate: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__(image_size, way)
        with seeded(seed):
            network = replace_all_batch_norm_modules_(Simple(way, width))
            self.optimiser = LearntOptimiser(hidden, first_rate)
        self._shapes = {name: weight.shape for name, weight in network.named_parameters()}
        self.first = nn.Parameter(torch.cat([weight.detach().flatten() for weight in network.parameters()]))
        self._network = [network.requires_grad_(False)]  # in a list: its weights are not the learner's
        self._steps = inner_steps

    def adapt(self, images: Tensor, targets: Tensor) -> Tensor:
        """Weights (n_weight,)."""
        weights, state = self.first, None
        for _ in range(self._steps):
            gradients, loss = grad_and_value(self._loss)(weights.detach(), images, targets)
            weights, state = self.optimiser(weights, gradients.detach(), loss.detach(), state)
        return weights

    def _logits(self, weights: Tensor, images: Tensor) -> Tensor:
        parts = torch.split(weights, [shape.numel() for shape in self._shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}
        logits: Tensor = functional_call(self._network[0], named, (images,))
        return logits


class LearntOptimiser(nn.Module):
    """One update of all coordinates: they share these weights, and each has a state of its own."""

    def __init__(self, hidden: int, first_rate: float) -> None:
        super().__init__()
        self.reader = nn.LSTMCell(4, hidden)
        self.forget, self.enter = nn.Linear(hidden + 2, 1), nn.Linear(hidden + 2, 1)
        for gate, start in ((self.forget, FIRST_FORGET), (self.enter, first_rate)):
            nn.init.uniform_(gate.weight, -0.01, 0.01)
            nn.init.constant_(gate.bias, math.log(start / (1 - start)))

    def forward(self, weights: Tensor, gradients: Tensor, loss: Tensor, state: State | None) -> tuple[Tensor, State]:
        """weights and gradients (n,), loss () -> new weights (n,), new state."""
        seen = torch.cat([preprocess(gradients), preprocess(loss.expand(len(gradients)))], dim=1)  # (n, 4)
        if state is None:
            empty = seen.new_zeros(len(seen), self.reader.hidden_size)
            state = (empty, empty, seen.new_ones(len(seen), 1), seen.new_zeros(len(seen), 1))
        hidden, cell = self.reader(seen, state[:2])
        column = weights[:, None]
        forget = self.forget(torch.cat([hidden, column, state[2]], dim=1)).sigmoid()  # (n, 1)
        enter = self.enter(torch.cat([hidden, column, state[3]], dim=1)).sigmoid()
        updated = forget * column - enter * gradients[:, None]
        return updated[:, 0], (hidden, cell, forget, enter)


def preprocess(values: Tensor) -> Tensor:
    """(n,) -> (n, 2): logarithm of the magnitude and sign, or, of small values, -1 and the value scaled up."""
    magnitude = values.abs()
    is_large = magnitude >= math.exp(-SCALE)
    logarithm = torch.where(is_large, magnitude.clamp(min=math.exp(-SCALE)).log() / SCALE, -1.0)
    direction = torch.where(is_large, values.sign(), values * math.exp(SCALE))
    return torch.stack([logarithm, direction], dim=1)


LEARNERS: dict[str, type[MetaLearner]] = {
    "matching": MatchingNetwork, "prototypical": PrototypicalNetwork, "maml": Maml, "meta-lstm": MetaLstm,
}  # fmt: skip
