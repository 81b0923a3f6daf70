"""Triplet network: an embedding is learned in which nearest neighbours are searched.

Lin, Wang, Li, Zhang, Yuille and Lee, Transfer of View-Manifold Learning to Similarity Perception of Novel Objects, ICLR
2017, as used by Qiao et al., CVPR 2018, who start from the pre-trained network and train all of it, one set of weights
for anchor, positive and negative: `TripletImages`, with a store that is extracted anew. On stored activations one
linear layer is learned on top of them. The loss has cosine distance and semi-hard mining within a batch:
Schroff, Kalenichenko and Philbin, FaceNet: A Unified Embedding for Face Recognition and Clustering, CVPR 2015.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import actstore
from actstore.backbones.loading import Backbone
from actstore.compute.tensors import borrow
from actstore.errors import IncompleteError, InvalidInputError, MissingSplitError, StorageError
from actstore.images.image_set import ImageSet, Loadable
from actstore.layout.class_index import ClassIndex
from actstore.search import BoundedSearch
from actstore.search.by_class import unit
from actstore.search.engines import SearchChoice
from actstore.search.index_files import folder as index_folder
from actstore.split import Split
from actstore.streams.sampling import Stream, generator
from baselines.image_training import ImageConfig, ImageRun, ImageTrainee, identify, images_of, train_images
from baselines.large_sample import RowTrainee
from baselines.nearest_neighbour import NearestNeighbour
from predictor.protocol.category_split import CategorySplit
from predictor.training import Trained, cosine
from predictor.training.backbones.images import LabelledImages, Plan


def triplet_loss(embeddings: Tensor, targets: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """(n, dim) and (n,) -> the mean over active triplets, and how many of the pairs have one, 0 to 1.

    For every two rows of a class the negative is semi-hard: the nearest to the anchor that is farther than the
    positive. A triplet is active where that negative is less than the margin farther.
    """
    units = unit(embeddings)
    distances = 1 - units @ units.T  # (n, n)
    same = targets[:, None] == targets[None, :]
    is_pair = same & ~torch.eye(len(targets), dtype=torch.bool, device=targets.device)
    with torch.no_grad():
        ordered, places = distances.masked_fill(same, torch.inf).sort(dim=1)
        following = torch.searchsorted(ordered, distances.contiguous(), right=True).clamp_(max=len(targets) - 1)
        is_farther = torch.isfinite(ordered.gather(1, following))  # else no negative is farther than the positive
        negatives = places.gather(1, following)  # (n, n): for anchor i and positive j
    short_of = distances - distances.gather(1, negatives) + margin
    active = is_pair & is_farther & (short_of > 0)
    loss = torch.where(active, short_of, 0).sum() / active.sum().clamp(min=1)
    return loss, active.sum() / is_pair.sum().clamp(min=1)


def plan_triplets(
    index: ClassIndex, labels: NDArray[np.int64], classes: int, per_class: int, seed: int, step: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of a batch and the places of their classes among the labels: so many rows of so many different classes."""
    if len(labels) < 2:
        raise InvalidInputError(f"triplets need at least two classes, got {len(labels)}")
    random = generator(seed, step, Stream.TRIPLETS)
    places = random.permutation(len(labels))[: min(classes, len(labels))].repeat(per_class)
    starts, counts = index.offsets[labels[places]], index.counts[labels[places]]
    return index.row_at(starts + random.integers(0, counts)), places


METHOD = "triplet"


@dataclass(frozen=True)
class TripletConfig:
    """A batch holds rows_per_class rows of each of classes_per_batch classes.

    Chosen on 16 of mini-ImageNet's base categories that played novel ones: the farther the map is from the identity
    (less weight decay), the better it knows the base categories and the worse the novel ones.
    """

    steps: int = 1000
    classes_per_batch: int = 32
    rows_per_class: int = 4
    margin: float = 0.2
    learning_rate: float = 1.0
    weight_decay: float = 1e-2
    momentum: float = 0.9
    seed: int = 0


class Embedding(nn.Module):
    """a -> a + change(a): a linear map that starts as the identity, to which weight decay pulls it back."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.change = nn.Parameter(torch.zeros(dim, dim))

    def forward(self, activations: Tensor) -> Tensor:
        """(…, dim) -> (…, dim)"""
        return activations + activations @ self.change.to(activations.device).T


class TripletTrainee(RowTrainee):
    _config: TripletConfig

    def __init__(self, train: Split, base: Sequence[str], config: TripletConfig, device: torch.device) -> None:
        super().__init__(train, base, config, device)
        self.embedding = Embedding(train.dim)
        self._learn(self.embedding)

    def step(self, number: int) -> dict[str, Tensor]:
        config = self._config
        rows, places = plan_triplets(
            self._train.class_index, self._labels, config.classes_per_batch, config.rows_per_class, config.seed, number
        )
        # Of length 1: the map is linear, so this changes no cosine, only makes one learning rate fit all stores.
        activations = unit(self._take(rows))
        loss, active = triplet_loss(
            self.embedding(activations), torch.from_numpy(places).to(self._device), config.margin
        )
        self.descend(loss, config.learning_rate * cosine(number, config.steps))
        return {"loss": loss.detach(), "active": active}


def trained_embedding(trained: Trained) -> Embedding:
    """For inference: without gradients."""
    change = trained.tensors["change"]
    embedding = Embedding(len(change))
    embedding.load_state_dict({"change": change})
    return embedding.requires_grad_(False)


class Triplet(NearestNeighbour):
    """Nearest neighbours in the learned embedding."""

    key, name, paper_name = METHOD, "Triplet (activations)", "Triplet"
    trained_on_base = True


_BLOCK = 8192
Say = Callable[[str], object]


class EmbeddedRows:
    """The rows of a split after the learned map, kept beside its store: embedded once, then searched like any others.

    A store of its own in STORE.search/SPLIT, in float32 as the map computes them, under a name made of the rows'
    content and the map's weights. Interrupted, the next call goes on with it. say: told what takes its time. search:
    whether an index of their own is made with them: where it is asked for, or where the rows that they were made of
    have one."""

    def __init__(self, train: Split, embedding: Embedding, search: SearchChoice, say: Say) -> None:
        self._train, self._embedding, self._search, self._say = train, embedding, search, say
        weights = hashlib.sha256(embedding.change.detach().contiguous().numpy().data)
        self._content = hashlib.sha256(train.content.encode()).hexdigest()[:12]
        self.path = index_folder(train) / f"embedded-{self._content}-{weights.hexdigest()[:12]}.zarr"

    def __call__(self) -> Split | None:
        """None where nothing can be written beside the store."""
        return self._split

    @cached_property
    def _split(self) -> Split | None:
        try:
            rows = self._open()
            if self._wants_index and not (index_folder(rows) / "bounded.json").exists():
                self._say(f"making a bounded index of the embedded rows in {self.path}, once")
                BoundedSearch.build(rows)
        except (StorageError, OSError) as error:
            self._say(f"embedded rows are not kept, so they are embedded and multiplied anew: {error}")
            return None
        return rows

    @property
    def _wants_index(self) -> bool:
        has_index = (index_folder(self._train) / "bounded.json").exists()
        return self._search.is_on_cpu and (self._search.method == "bounded" or (self._search.is_auto and has_index))

    def _open(self) -> Split:
        train = self._train
        if (self.path / "zarr.json").exists():
            store = actstore.open(self.path)
            with suppress(IncompleteError, MissingSplitError):  # an interrupted run's, which goes on below
                return store[train.name]
        else:
            for old in self.path.parent.glob("embedded-*.zarr*"):  # of rows that are no longer these
                if not old.name.startswith(f"embedded-{self._content}-"):
                    shutil.rmtree(old, ignore_errors=True)
            store = actstore.create(self.path, classes=train.classes, dim=train.dim, dtype="f4", rows=len(train))
        self._say(f"embedding {len(train):,} rows into {self.path}, {4 * len(train) * train.dim / 1e9:.1f} GB, once")
        with store.writer(train.name, source={"kind": "embedded", "rows": train.content}) as writer:
            labels = train.labels
            for start in range(writer.position, len(train), _BLOCK):
                stop = min(len(train), start + _BLOCK)
                rows = borrow(train.rows.read(start, stop)).float()
                writer.append(self._embedding(rows).numpy(), labels[start:stop])
        return actstore.open(self.path)[train.name]


IMAGES = "triplet-images"
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
    identity = identify(IMAGES, backbone, config, split, images, margin=MARGIN, per_class=PER_CLASS)
    make = partial(TripletImages, backbone, images, split.base, config, run)
    return train_images(folder, identity, make, config.steps, run)


class TripletOfImages(NearestNeighbour):
    """Nearest neighbours among activations of the fine-tuned network."""

    key, name, paper_name = IMAGES, "Triplet (images)", "Triplet"
