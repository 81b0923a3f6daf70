"""A network by its name: one of this package, of torchvision, of timm, or a user's own."""

from __future__ import annotations

import difflib
import importlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from actstore.backbones.network import Network
from actstore.backbones.resnet import resnet18, resnet50
from actstore.backbones.simple import Simple
from actstore.backbones.small import Small
from actstore.backbones.transform import Transform
from actstore.backbones.wide_resnet import WideResNet
from actstore.errors import InvalidInputError

NETWORKS: dict[str, Callable[[int], Network]] = {
    "resnet50": resnet50,
    "resnet18": resnet18,
    "simple": Simple,
    "wrn28-10": WideResNet,
    "small": Small,
}
# Files that torchvision publishes; the first one found in torch's cache is taken.
PUBLISHED = {
    "resnet50": ("resnet50-11ad3fa6.pth", "resnet50-0676ba61.pth"),
    "resnet18": ("resnet18-f37072fd.pth",),
}
BROKEN_IMPORT = (ImportError, RuntimeError, OSError, AttributeError)  # torchvision built for another torch


@dataclass(frozen=True)
class Construction:
    """A network with fresh weights.

    head: name of the classifier, whose input is the activation; None: the output is.
    published: file name -> transform of weights that others publish for it (None: the network's own).
    own_weights: the network may come with weights already.
    """

    module: nn.Module
    transform: Transform
    head: str | None = "fc"
    published: Mapping[str, Transform | None] = field(default_factory=dict)
    own_weights: bool = False


def construct(name: str, seed: int = 0) -> Construction:
    """name: one of NETWORKS, `torchvision:NAME`, `timm:NAME` or `package.module:factory`."""
    kind, colon, rest = name.partition(":")
    with seeded(seed):
        if name in NETWORKS:
            network = NETWORKS[name](1000)
            return Construction(network, network.transform, published=dict.fromkeys(PUBLISHED.get(name, ())))
        if not colon or not kind or not rest:
            close = difflib.get_close_matches(name, NETWORKS, n=1)
            advice = f"did you mean {close[0]}?" if close else "or torchvision:NAME, timm:NAME, package.module:factory"
            raise InvalidInputError(f"no backbone {name!r}; known: {', '.join(NETWORKS)}; {advice}")
        if kind == "torchvision":
            return _from_torchvision(rest)
        return _from_timm(rest) if kind == "timm" else _from_factory(kind, rest)


def build_network(name: str, num_classes: int, seed: int = 0) -> Network:
    """One of NETWORKS with fresh weights, to be trained."""
    if name not in NETWORKS:
        raise InvalidInputError(f"only {', '.join(NETWORKS)} can be trained here, got {name!r}")
    with seeded(seed):
        return NETWORKS[name](num_classes)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Layers draw their first weights from torch's global generator: seed it, and put it back after."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _from_torchvision(name: str) -> Construction:
    models = _optional("torchvision.models")
    try:
        module = models.get_model(name, weights=None)
        published = {Path(entry.url).name: _preset(entry.transforms()) for entry in models.get_model_weights(name)}
    except ValueError as error:
        raise InvalidInputError(f"torchvision has no classification model {name!r}: {error}") from error
    transform = next((preset for preset in published.values() if preset), Transform(resize=256, crop=224))
    return Construction(module, transform, last_linear(module), published)


def _preset(preset: Any) -> Transform | None:
    """torchvision's own description of what its weights expect; None for tasks other than classification."""
    if not hasattr(preset, "resize_size") or not hasattr(preset, "crop_size"):
        return None
    interpolation = preset.interpolation.value
    return Transform(preset.resize_size[0], preset.crop_size[0], preset.mean, preset.std, interpolation)


def _from_timm(name: str) -> Construction:
    timm = _optional("timm")
    try:
        module = timm.create_model(name, pretrained=False)
    except RuntimeError as error:
        raise InvalidInputError(f"timm has no model {name!r}: {error}") from error
    config = _optional("timm.data").resolve_model_data_config(module)
    crop = config["input_size"][-1]
    resize = math.floor(crop / config["crop_pct"])
    transform = Transform(resize, crop, config["mean"], config["std"], config["interpolation"])
    return Construction(module, transform, last_linear(module))


def _optional(library: str) -> Any:
    package = library.partition(".")[0]
    try:
        return importlib.import_module(library)
    except BROKEN_IMPORT as error:
        reason = str(error).partition("\n")[0]
        raise InvalidInputError(
            f"{package}:NAME needs {package}, which cannot be imported ({reason}); "
            f"install it, or use one of {', '.join(NETWORKS)}"
        ) from error


def last_linear(module: nn.Module) -> str | None:
    """The classifier comes last in published networks; what it reads is the activation."""
    return next((name for name, part in reversed(list(module.named_modules())) if isinstance(part, nn.Linear)), None)


def _from_factory(module_name: str, attribute: str) -> Construction:
    name = f"{module_name}:{attribute}"
    factory = getattr(_import_beside_user(module_name, name), attribute, None)
    if not callable(factory):
        raise InvalidInputError(f"backbone {name}: {module_name} has no callable {attribute!r}")
    network = factory if isinstance(factory, nn.Module) else _call(factory, name)
    if not isinstance(network, nn.Module):
        raise InvalidInputError(f"backbone {name} must return a torch.nn.Module, got {type(network).__name__}")
    return Construction(
        network,
        _own_transform(factory, network, name),
        "fc" if isinstance(network, Network) else None,
        own_weights=True,
    )


def _call(factory: Callable[[], Any], name: str) -> Any:
    try:
        return factory()
    except Exception as error:  # a user's code may raise anything
        what = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise InvalidInputError(
            f"backbone {name} must make a network when it is called, it failed with {what}"
        ) from error


def _import_beside_user(module_name: str, name: str) -> Any:
    """Import, also from the current folder: an installed command does not have that on its path."""
    folder = str(Path.cwd())
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)  # last, so that it hides nothing
    try:
        return importlib.import_module(module_name)
    except Exception as error:  # a user's code may raise anything
        what = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise InvalidInputError(f"backbone {name}: cannot import {module_name} ({what})") from error


def _own_transform(factory: Any, network: nn.Module, name: str) -> Transform:
    """The attribute `transform` of the factory or the network; else ImageNet's usual."""
    stated = getattr(factory, "transform", None) or getattr(network, "transform", None)
    if isinstance(stated, Mapping):
        return Transform.from_json(stated)
    if stated is None or isinstance(stated, nn.Module):  # a layer of that name is the network's own business
        return Transform(resize=256, crop=224)
    if not isinstance(stated, Transform):
        raise InvalidInputError(f"transform of {name} must be an actstore Transform, got {type(stated).__name__}")
    return stated
