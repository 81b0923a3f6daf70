"""A classifier from a pretrained network alone, without phi or store: of one's own categories, or beside those that the
network knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from actstore.backbones.loading import Backbone
from predictor.classifier.classifier import Classifier
from predictor.classifier.held_out import leave_one_out
from predictor.classifier.unknown import PHOTOS, PHOTOS_KNOWN, Unknown
from predictor.protocol.head import head_of
from predictor.protocol.method import Aggregate

BESIDE_KNOWN = "beside_known"  # in a classifier's `about`, until a constant is chosen by hand


def classifier_alone(backbone: Backbone, about: Mapping[str, Any]) -> Classifier:
    """It knows nothing yet, and will know what it is taught alone."""
    return Classifier.alone(next(iter(backbone.layers.values())), about=about)


def classifier_beside_known(backbone: Backbone, about: Mapping[str, Any]) -> Classifier:
    """It knows what the network was trained on, and scores what it is taught beside that. Its file says so: with
    all that it learns later the constant is fitted anew."""
    head = head_of(backbone)
    names = head.classes or tuple(f"known {row}" for row in range(len(head.weight)))
    return Classifier.from_head(head, names, about={**about, BESIDE_KNOWN: True}, unknown=Unknown(PHOTOS, PHOTOS_KNOWN))


# Of the taught categories' own images, so many are to win against what the network knows. On mini-ImageNet's photos
# through efficientnet-lite0 the constant with the best harmonic mean let 84 to 97% win (2, 5 and 16 categories of 1 and
# 5 examples beside 984 known ones).
WINNING = 0.9


def choose_bias(classifier: Classifier, novel_bias: float, aggregate: Aggregate | None = None) -> None:
    """Set a constant that a user chose: what is learnt later leaves it as it is."""
    classifier.calibrate(novel_bias, aggregate)
    classifier.about.pop(BESIDE_KNOWN, None)


@torch.no_grad()
def bias_beside_known(classifier: Classifier) -> float:
    """The constant on the taught categories' scores, where no rows of the known ones are at hand to balance it with.

    Each example is scored without itself; where it is its category's only one, with the familiarity that is usual.
    """
    first, limits = len(classifier.base), []
    held_out = leave_one_out(classifier)
    if len(held_out.category):
        own = held_out.scores[:, first:] - classifier.novel_bias
        is_right = own.argmax(1) == held_out.category - first
        limits.append((held_out.scores[:, :first].amax(1) - own.amax(1))[is_right])
    single = [rows for rows in classifier.support.values() if len(rows) == 1]
    if single and classifier.unknown is not None:
        rows = torch.cat(single)
        weight = classifier.rows.weight[first:].norm(dim=1).mean()  # the scale of a score
        point = classifier.fitted.directions(classifier.rows.weight[:0])[1]
        expected = classifier.unknown.expected(1)[0] * weight * (classifier.fitted.read(rows) - point).norm(dim=1)
        limits.append(classifier.scores(rows)[:, :first].amax(1) - expected)
    pooled = torch.cat(limits) if limits else torch.empty(0)
    return float(np.quantile(pooled.double().numpy(), WINNING)) if len(pooled) else classifier.novel_bias
