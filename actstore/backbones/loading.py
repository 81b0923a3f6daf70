"""A backbone by name, with its weights, the layers to read and the transform its images need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from actstore.backbones.capture import capture, measure_layers, parse_layers
from actstore.backbones.construction import NETWORKS, Construction, construct
from actstore.backbones.transform import Transform
from actstore.backbones.weights import fit_weights, read_weights, weights_sha256
from actstore.errors import InvalidInputError


@dataclass
class Backbone:
    """A network in evaluation mode, ready to turn images into activations.

    layers: name -> dim of what `activations` returns. head: name of the classifier, None where the output of
    the module is the activation. trained_classes: class names in the order of the classifier, if known.
    """

    name: str
    module: nn.Module
    layers: dict[str, int]
    transform: Transform
    weights_sha256: str | None = None
    trained_classes: tuple[str, ...] | None = None
    head: str | None = None

    def activations(self, images: Tensor) -> dict[str, Tensor]:
        """(n, 3, height, width), on the module's device -> per layer (n, dim) float32. No gradients."""
        with torch.no_grad(), capture(self.module, self.layers, self.head) as found:
            self.module(images)
        return {layer: found[layer] for layer in self.layers}


def load_backbone(
    name: str,
    weights: Path | None = None,
    layers: Sequence[str] = (),
    seed: int = 0,
    random_weights: bool = False,
) -> Backbone:
    """name: resnet50, resnet18, simple, wrn28-10, small, torchvision:NAME, timm:NAME or package.module:factory.

    weights: a .pth, .pt or .safetensors file; without one, torchvision's own file in torch's cache, which is
    never downloaded. layers: names as in `named_modules()`; without one, the pooled activation.
    random_weights: weights drawn from the seed, for tests and benchmarks.
    """
    if weights is not None and random_weights:
        raise InvalidInputError(f"random weights and the weights file {weights} exclude each other; choose one")
    built = construct(name, seed)
    chosen = parse_layers(built.module, layers)
    transform, classes = built.transform, None
    path = weights
    if path is None and not random_weights:
        path = find_published(name, built)
    if path is not None:
        file = read_weights(Path(path))
        fit_weights(built.module, file, name, built.head)
        transform = file.transform or built.published.get(file.path.name) or transform
        classes = file.classes
    built.module.eval()
    dims = measure_layers(built.module, chosen, built.head, transform, name)
    return Backbone(name, built.module, dims, transform, weights_sha256(built.module), classes, built.head)


def find_published(name: str, built: Construction) -> Path | None:
    """Weights that torch downloaded before. None for a user's network, which may bring its own."""
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    for file in built.published:
        if (folder / file).is_file():
            return folder / file
    if built.own_weights:
        return None
    ways = ["pass --weights FILE (.pth, .pt or .safetensors)"]
    if built.published:
        ways.append(f"put {' or '.join(built.published)} into {folder}")
    if name in NETWORKS:
        ways.append("train it with `ppa pretrain`")
    raise InvalidInputError(f"{name} needs weights: {', or '.join(ways)}")
