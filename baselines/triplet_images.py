"""Triplet network on images: the whole backbone is fine-tuned, one set of weights for anchor, positive and negative.

Lin, Wang, Li, Zhang, Yuille and Lee, Transfer of View-Manifold Learning to Similarity Perception of Novel Objects, ICLR
2017, as used by Qiao et al., CVPR 2018: it starts from the pre-trained network, and the distance is the cosine's. The
mining within a batch is FaceNet's (triplet.py). Nearest neighbours are then searched in a store that is
extracted anew with these weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
from torch import Tensor

from actstore.backbones.loading import Backbone
from actstore.images.image_set import ImageSet, Loadable
from actstore.layout.class_index import ClassIndex
from baselines.image_training import ImageConfig, ImageRun, ImageTrainee, identify, images_of, train_images
from baselines.nearest_neighbour import NearestNeighbour
from baselines.triplet import plan_triplets, triplet_loss
from predictor.protocol.category_split import CategorySplit
from predictor.training import Trained
from predictor.training.backbones.images import LabelledImages, Plan

METHOD = "triplet-images"
PER_CLASS = 4  # images of a class in a batch
MARGIN = 0.2
_STEPS_PER_AUGMENTATION = 100  # shifts and mirrorings are drawn for all images at a time


class TripletImages(ImageTrainee):
    def __init__(
        self, backbone: Backbone, images: LabelledImages, base: tuple[str, ...], config: ImageConfig, run: ImageRun
    ) -> None:
        self._index = ClassIndex(base, images.targets)
        super().__init__(backbone, images, backbone.trained_classes, config, run)  # its classifier stays as it was

    def plan(self, first: int) -> Plan:
        config, labels = self._config, np.arange(len(self._index))
        for number in count(first):
            classes = max(2, config.batch_size // PER_CLASS)
            rows, _ = plan_triplets(self._index, labels, classes, PER_CLASS, config.seed, number)
            yield number // _STEPS_PER_AUGMENTATION, rows

    def loss(self, images: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss, active = triplet_loss(self.network.features(images).float(), targets, MARGIN)
        return loss, {"active": active}


def train_triplet_images(
    sets: Mapping[str, ImageSet[Loadable]],
    split: CategorySplit,
    backbone: Backbone,
    folder: Path,
    config: ImageConfig,
    run: ImageRun = ImageRun(),  # noqa: B008 - frozen
) -> Trained:
    """Fine-tune on the training images of the base classes; FOLDER/weights.safetensors is for `actstore build`."""
    images = images_of(sets, split.base)
    identity = identify(METHOD, backbone, config, split, images, margin=MARGIN, per_class=PER_CLASS)
    make = partial(TripletImages, backbone, images, split.base, config, run)
    return train_images(folder, identity, make, config.steps, run)


class TripletOfImages(NearestNeighbour):
    """Nearest neighbours among activations of the fine-tuned network."""

    key, name, paper_name = METHOD, "Triplet (images)", "Triplet"
