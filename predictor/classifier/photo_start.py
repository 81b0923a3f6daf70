"""A classifier from a pretrained network alone, without phi or store: of one's own categories, or beside those that the
network knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actstore.backbones.loading import Backbone
from predictor.classifier.classifier import Classifier
from predictor.classifier.unknown import PHOTOS, PHOTOS_KNOWN, Unknown
from predictor.protocol.head import head_of


def classifier_alone(backbone: Backbone, about: Mapping[str, Any]) -> Classifier:
    """It knows nothing yet, and will know what it is taught alone."""
    return Classifier.alone(next(iter(backbone.layers.values())), about=about)


def classifier_beside_known(backbone: Backbone, about: Mapping[str, Any]) -> Classifier:
    """It knows what the network was trained on, and scores what it is taught beside that."""
    head = head_of(backbone)
    names = head.classes or tuple(f"known {row}" for row in range(len(head.weight)))
    return Classifier.from_head(head, names, about=about, unknown=Unknown(PHOTOS, PHOTOS_KNOWN))
