"""The triplet loss with cosine distance and semi-hard mining within a batch, and the batches it needs.

Schroff, Kalenichenko and Philbin, FaceNet: A Unified Embedding for Face Recognition and Clustering, CVPR 2015.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.layout.class_index import ClassIndex
from actstore.search.by_class import unit
from actstore.streams.sampling import Stream, generator


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
