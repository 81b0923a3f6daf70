"""Networks that turn images into activations: their weights and transforms, loaded by name, file or a user's code.

Imports `images` and what stands above it. What others may use is in `__all__`.
"""

from __future__ import annotations

from actstore.backbones.construction import construct, require_trainable
from actstore.backbones.loading import Backbone, as_backbone, load_backbone, stated_backbone
from actstore.backbones.network import Transform
from actstore.backbones.weights import Choice, default_backbone

__all__ = [
    "Backbone",
    "Choice",
    "Transform",
    "as_backbone",
    "construct",
    "default_backbone",
    "load_backbone",
    "require_trainable",
    "stated_backbone",
]
