"""Fine-tuned network: its classifier is extended by the novel categories, and all layers are trained on both sets.

The baseline "Fine-Tuned ResNet" of Qiao, Liu, Shen and Yuille, Few-Shot Image Recognition by Predicting Parameters from
Activations, CVPR 2018 (the network: He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, CVPR 2016).
It is trained for one draw of the support, and may be asked about no other. Where only activations are at hand, the
classifier alone is extended and trained on both sets (`FineTunedHead`); with images, all layers follow from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from actstore.backbones.loading import Backbone
from actstore.errors import InvalidInputError
from actstore.images.image_set import ImageSet, Loadable
from actstore.layout.class_index import ClassIndex
from actstore.streams.sampling import Stream, draw_support, generator
from baselines.image_training import (
    ImageConfig,
    ImageRun,
    ImageTrainee,
    epoch_rows,
    extend_classifier,
    identify,
    images_of,
    train_images,
    trainable,
)
from baselines.large_sample import MOST_ROWS, ExtendedHead, LargeSample
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.head import Head, head_for, head_of
from predictor.protocol.method import JointMethod
from predictor.training import Trained
from predictor.training.backbones.images import LabelledImages, Plan

METHOD = "finetune-images"


@dataclass(frozen=True)
class Draw:
    """Which examples of the novel categories: the same as `ppa eval` draws with this seed."""

    shots: int = 1
    number: int = 0
    seed: int = 0


class FineTune(ImageTrainee):
    """images: those of D_large first, then `few` examples of the novel categories."""

    def __init__(
        self, backbone: Backbone, images: LabelledImages, few: int, split: CategorySplit, config: ImageConfig,
        run: ImageRun, head: Head | None,
    ) -> None:  # fmt: skip
        network = trainable(backbone)
        head = head_for(head_of(backbone) if head is None else head, split.base, network.dim)
        extend_classifier(network, head.weight, head.bias, len(split.novel))
        # Every category counts the same, as in the classifier-only variant (large_sample.py).
        share = len(split.novel) / (len(split.base) + len(split.novel))
        self._large, self._few = len(images) - few, few
        self._novel = min(config.batch_size - 1, max(1, round(config.batch_size * share)))  # of a batch
        super().__init__(backbone, images, (*split.base, *split.novel), config, run)
        self._start(head, split)

    def _start(self, head: Head, split: CategorySplit) -> None:
        """The classifier as it is trained on activations: from nothing, it needs more images than whole networks are
        trained on here. (Kumar et al., Fine-Tuning Can Distort Pretrained Features, ICLR 2022, begin likewise.)"""
        examples, places = self.activations(self._large + np.arange(self._few))
        if len(examples) < self._few:
            raise InvalidInputError(f"{self._few - len(examples)} of the {self._few} few examples cannot be read")
        started = FineTunedHead(head, seed := self._config.seed, device=examples.device)
        shuffled = generator(seed, 0, Stream.LARGE_SAMPLE).permutation(self._large)
        large = self.activations(np.sort(shuffled[:MOST_ROWS]))  # all of them, if they are few enough to be held
        started.prepare_with(LargeSample(*large, seed), split.base)
        learnt = started.learn(examples[places.argsort(stable=True)].reshape(len(split.novel), -1, examples.shape[1]))
        with torch.no_grad():
            self.network.fc.weight.copy_(learnt.weight)
            self.network.fc.bias.copy_(learnt.bias)

    def plan(self, first: int) -> Plan:
        config = self._config
        for number in count(first):
            epoch, rows = epoch_rows(self._large, config.batch_size - self._novel, config.seed, number)
            drawn = generator(config.seed, number, Stream.NOVEL_EXAMPLES).integers(0, self._few, self._novel)
            yield epoch, np.concatenate([rows, self._large + drawn])

    def loss(self, images: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        logits = self.network(images).float()
        recognised = (logits.detach().argmax(1) == targets).float().mean()
        return functional.cross_entropy(logits, targets), {"top1": recognised}


def train_finetuned(
    sets: Mapping[str, ImageSet[Loadable]],
    split: CategorySplit,
    backbone: Backbone,
    folder: Path,
    config: ImageConfig,
    draw: Draw,
    run: ImageRun = ImageRun(),  # noqa: B008 - frozen
    head: Head | None = None,
) -> Trained:
    """Train all layers on D_large and the few examples of this draw. head: of the base categories, where the network's
    own classifier is of others, as a published one's is."""
    if not split.novel:
        raise InvalidInputError("the split names no novel class to fine-tune for; it needs at least one")
    rows = support_rows(sets, split, draw)
    images = _both_sets(sets, split, rows)
    more = {"shots": draw.shots, "draw": draw.number, "support_seed": draw.seed, "support_rows": rows.tolist(),
            "start": "activations"}  # fmt: skip
    more |= {} if head is None else {"head": hashlib.sha256(head.weight.numpy().tobytes()).hexdigest()}
    identity = identify(METHOD, backbone, config, split, images, **more)
    make = partial(FineTune, backbone, images, rows.size, split, config, run, head)
    return train_images(folder, identity, make, config.steps, run)


def support_rows(sets: Mapping[str, ImageSet[Loadable]], split: CategorySplit, draw: Draw) -> NDArray[np.int64]:
    """(n_novel, shots) places among the training images, which are also their rows in a store built of them."""
    names = sorted({name for images in sets.values() for name in images.classes})  # as `actstore build` numbers them
    label_of = {name: label for label, name in enumerate(names)}
    split.require_known(names, ("base", "novel"))
    index = ClassIndex(names, np.array([label_of.get(item.label or "", -1) for item in sets["train"].items]))
    chosen = np.array([label_of[name] for name in split.novel])
    return draw_support(index, chosen, draw.shots, draw.seed, draw.number)


def _both_sets(sets: Mapping[str, ImageSet[Loadable]], split: CategorySplit, rows: NDArray[np.int64]) -> LabelledImages:
    large = images_of(sets, split.base)
    few = [sets["train"].items[row] for row in rows.ravel().tolist()]
    targets = len(split.base) + np.arange(len(split.novel)).repeat(rows.shape[1])
    return LabelledImages([*large.items, *few], np.concatenate([large.targets, targets]))


class FineTuned(JointMethod):
    """Queries must be activations of the fine-tuned network: of the store that was extracted with its weights."""

    key = METHOD
    name = "Fine-Tuned network (images)"
    paper_name = "Fine-Tuned ResNet"
    finetuned = True

    def __init__(self, trained: Trained) -> None:
        self._head = Head(trained.tensors["weight"], trained.tensors["bias"])
        config = trained.identity["config"]
        self.draw = Draw(config["shots"], config["draw"], config["support_seed"])
        self.only_draw, self.only_rows = (self.draw.shots, self.draw.number), np.array(config["support_rows"])

    def scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return self._head.scores(queries)


class FineTunedHead(ExtendedHead, JointMethod):
    """Base rows start as the classifier's, novel rows at 0; all are trained."""

    key = "finetune"
    name = "Fine-Tuned fc (activations)"
    paper_name = "Fine-Tuned ResNet"

    def scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return self.learn(support).scores(queries)

    def learn(self, support: Tensor) -> Head:
        """The extended classifier."""
        examples, places = self._sample.flatten(support)
        n_novel, n_base = len(support), len(self._head.weight)

        def slope(logits: Tensor, batch: Tensor) -> Tensor:  # probability less what is wanted
            slopes = logits.softmax(dim=1)
            wanted = torch.cat([self._sample.targets[batch], n_base + places])
            slopes[torch.arange(len(slopes), device=slopes.device), wanted] -= 1
            return slopes

        known = self._head.weight.to(examples.device), self._head.bias.to(examples.device)
        weight = torch.cat([known[0], examples.new_zeros(n_novel, examples.shape[1])])
        bias = torch.cat([known[1], examples.new_zeros(n_novel)])
        self.train_rows(weight, bias, support, slope)
        return Head(weight.cpu(), bias.cpu())


class FinetunedEpisode:
    """The fine-tuned baseline of 5-way tables: a softmax classifier trained on each task's support, features fixed.

    As in Ravi and Larochelle, Optimization as a Model for Few-Shot Learning, ICLR 2017, where its settings are not
    given; those here are Chen, Liu, Kira, Wang and Huang's for their Baseline (A Closer Look at Few-shot
    Classification, ICLR 2019), but for whole-batch steps from zero weights, so that nothing is random. All tasks of a
    batch are trained at once, by gradients written out: no graph is kept.
    """

    name = "Fine-Tuned Baseline"

    def __init__(self, steps: int = 100, rate: float = 0.01, momentum: float = 0.9, weight_decay: float = 1e-3) -> None:
        self._steps, self._rate, self._momentum, self._weight_decay = steps, rate, momentum, weight_decay

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """(tasks, way, shots, dim) and (tasks, n, dim) -> (tasks, n, way)."""
        weights = self.fit(support)
        return queries @ weights[..., :-1].mT + weights[:, None, :, -1]

    def fit(self, support: Tensor) -> Tensor:
        """(tasks, way, shots, dim) -> weights (tasks, way, dim + 1), the bias last."""
        tasks, way, shots, dim = support.shape
        examples = torch.cat([support, support.new_ones(tasks, way, shots, 1)], dim=3).flatten(1, 2)
        wanted = torch.eye(way, device=support.device).repeat_interleave(shots, 0)  # (way * shots, way)
        weights = support.new_zeros(tasks, way, dim + 1)
        velocity = torch.zeros_like(weights)
        for _ in range(self._steps):
            errors = (examples @ weights.mT).softmax(2) - wanted  # (tasks, way * shots, way)
            gradient = errors.mT @ examples / (way * shots) + self._weight_decay * weights
            velocity = self._momentum * velocity + gradient
            weights = weights - self._rate * velocity
        return weights
