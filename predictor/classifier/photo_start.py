"""A classifier from a pretrained network alone, without phi or store: of one's own categories, or beside those that the
network knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from actstore.backbones.loading import Backbone
from actstore.backbones.network import Network
from predictor.classifier.classifier import Classifier
from predictor.protocol.head import head_of


def classifier_alone(backbone: Backbone, about: Mapping[str, Any]) -> Classifier:
    """It knows nothing yet, and will know what it is taught alone."""
    return Classifier.alone(centre_of(backbone), about=about)


def classifier_beside_known(backbone: Backbone, about: Mapping[str, Any]) -> Classifier:
    """It knows what the network was trained on, and scores what it is taught beside that."""
    head = head_of(backbone)
    names = head.classes or tuple(f"known {row}" for row in range(len(head.weight)))
    return Classifier.from_head(head, names, centre_of(backbone), about=about)


def centre_of(backbone: Backbone) -> Tensor:
    """(dim,) the average activation where the network's own weights tell it; zeros where they do not."""
    found = backbone.module.average_activation() if isinstance(backbone.module, Network) else None
    dim = next(iter(backbone.layers.values()))
    return torch.zeros(dim) if found is None or len(found) != dim else found
