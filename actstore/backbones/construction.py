"""A network by its name: one of this package or several side by side, of torchvision, of timm, or a user's own."""

from __future__ import annotations

import difflib
import importlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from actstore.backbones.architectures import NETWORKS
from actstore.backbones.network import (
    IMAGENET,
    Construction,
    JoinedTransform,
    Network,
    Transform,
    imagenet_wnids,
    joined_transform,
)
from actstore.errors import InvalidInputError

JOINED_BY = "+"  # in a name, such as resnet8+resnet8
MOST = 8  # networks: a file that came from anywhere may ask for no more memory than that


class SideBySide(Network):
    """Of networks whose maps have the same places. Activations: those of the first, then those of the second, …"""

    def __init__(self, networks: Sequence[Network], num_classes: int = 1000) -> None:
        super().__init__()
        for network in networks:
            network.fc = nn.Identity()  # type: ignore[assignment]  # one classifier for all, which end_in adds
        self.end_in(sum(network.dim for network in networks), num_classes)
        self.networks = nn.ModuleList(networks)

    def maps(self, images: Tensor) -> Tensor:
        return torch.cat([network.maps(images) for network in self.networks], 1)  # type: ignore[operator]


class Joined(Network):
    """Different published networks side by side, each reading the image as it does alone. Activations: those of the
    first, then those of the second, …, at lengths that are equal on average, so that none outweighs the others.

    lengths: of each network's activations, on average. They belong to the networks and are not measured on the images
    at hand, so that activations of all images can be compared. The logits are the mean of the networks' logits.
    """

    scales: Tensor

    def __init__(self, networks: Sequence[Network], lengths: Sequence[float]) -> None:
        super().__init__()
        self.own_transform: JoinedTransform = joined_transform([network.transform for network in networks])
        classifiers = [network.fc for network in networks]
        for network in networks:
            network.fc = nn.Identity()  # type: ignore[assignment]
        self.dim = sum(network.dim for network in networks)
        self.networks = nn.ModuleList(networks)
        self.register_buffer("scales", torch.tensor([JOINED_LENGTH / length for length in lengths]))
        self.fc = nn.Linear(self.dim, classifiers[0].out_features)
        with torch.no_grad():
            weights = [fc.weight / scale for fc, scale in zip(classifiers, self.scales, strict=True)]
            self.fc.weight.copy_(torch.cat(weights, 1) / len(weights))  # (n_class, dim)
            self.fc.bias.copy_(torch.stack([fc.bias for fc in classifiers]).mean(0))

    def features(self, images: Tensor) -> Tensor:
        """(n, 3 * networks, height, width), as `own_transform` makes them -> (n, dim)"""
        parts = zip(self.networks, self.own_transform.split(images), self.scales, strict=True)
        return torch.cat([network.features(own) * scale for network, own, scale in parts], 1)  # type: ignore[operator]


def from_torchvision(model: str, pretrained: bool) -> Construction:
    """model: NAME, or NAME.TAG such as resnet50.IMAGENET1K_V1; without a tag its newest weights are fetched."""
    models = _optional("torchvision.models")
    name, _, tag = model.partition(".")
    try:
        module, weights = models.get_model(name, weights=None), models.get_model_weights(name)
    except ValueError as error:
        raise InvalidInputError(f"torchvision has no classification model {name!r}: {error}") from error
    entries = [entry for entry in weights if not tag or entry.name == tag]
    if tag and not entries:
        known = ", ".join(entry.name for entry in weights)
        raise InvalidInputError(f"torchvision has no weights {tag!r} for {name}; it has {known or 'none'}")
    head, classes = last_linear(module), imagenet_wnids()
    published: dict[str, Transform | None] = {}
    for entry in entries:
        preset, transform = entry.transforms(), None
        if hasattr(preset, "resize_size") and hasattr(preset, "crop_size"):  # it is meant for classification
            sizes = preset.resize_size[0], preset.crop_size[0]
            transform = Transform(*sizes, preset.mean, preset.std, preset.interpolation.value)
        published[Path(entry.url).name] = transform
    if pretrained:
        entry = entries[0] if tag else weights.DEFAULT
        exact = f"torchvision:{name}.{entry.name}"
        try:
            module.load_state_dict(entry.get_state_dict(progress=False, check_hash=True))
        except Exception as error:  # noqa: BLE001 - whatever its downloader raises
            _not_fetched(exact, error, entry.url)
        transform = published[Path(entry.url).name] or IMAGENET
        return Construction(exact, module, transform, head, {}, classes, has_weights=True)
    transform = next(filter(None, published.values()), IMAGENET)
    return Construction(f"torchvision:{model}", module, transform, head, published, classes)


def from_timm(model: str, pretrained: bool) -> Construction:
    """model: NAME or NAME.TAG, as timm writes them."""
    timm = _optional("timm")
    try:
        module = timm.create_model(model, pretrained=False)  # first, so that a wrong name is not taken for no internet
    except (RuntimeError, ValueError) as error:
        raise InvalidInputError(f"timm has no model {model!r}: {error}") from error
    facts = getattr(module, "pretrained_cfg", None) or {}
    tag, name = facts.get("tag"), f"timm:{model}"
    if pretrained:
        name = f"{name}.{tag}" if tag and "." not in model else name
        try:
            module = timm.create_model(model, pretrained=True)
        except Exception as error:  # noqa: BLE001 - whatever its downloader raises
            _not_fetched(name, error, facts.get("url") or f"https://huggingface.co/{facts.get('hf_hub_id') or 'timm'}")
    config = _optional("timm.data").resolve_model_data_config(module)
    crop = config["input_size"][-1]
    resize = math.floor(crop / config["crop_pct"])
    transform = Transform(resize, crop, config["mean"], config["std"], config["interpolation"])
    head = last_linear(module)
    if hasattr(module, "get_classifier"):  # networks without one, such as DINO's, give the activation
        classifier = module.get_classifier()
        first = classifier[0] if isinstance(classifier, tuple) else classifier  # distilled ones have two
        parts = [name for name, part in module.named_modules() if part is first and isinstance(part, nn.Linear)]
        head = parts[0] if parts else None
    classes = imagenet_wnids() if tag and "in1k" in tag else None
    return Construction(name, module, transform, head, {}, classes, has_weights=pretrained)


def _not_fetched(name: str, error: Exception, url: str) -> NoReturn:
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    raise InvalidInputError(
        f"the weights of {name} could not be fetched ({reason}); without internet, download them elsewhere from {url} "
        "and pass them with --weights FILE instead of --pretrained"
    ) from error


def _optional(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except (ImportError, RuntimeError, OSError, AttributeError) as error:  # such as torchvision built for another torch
        package, reason = library.partition(".")[0], str(error).partition("\n")[0]
        raise InvalidInputError(
            f"{package}:NAME needs {package}, which cannot be imported ({reason}); "
            "install it, or use a network of actstore such as efficientnet-lite0 or resnet50"
        ) from error


def last_linear(module: nn.Module) -> str | None:
    """The classifier comes last in published networks; what it reads is the activation."""
    return next((name for name, part in reversed([*module.named_modules()]) if isinstance(part, nn.Linear)), None)


# Files of weights for ImageNet's categories; the first one found in torch's cache or in PACKAGES is taken. Of
# torchvision's two for a ResNet-50 the older comes first: it is what studies of features mean by a ResNet-50. The newer
# (11ad3fa6, 80.9% instead of 76.1% on ImageNet) owes its lead to label smoothing, mixed images and 600 epochs, by which
# examples of a category lie closer together and say less about categories that the network was not trained on.
PUBLISHED = {
    "resnet50": ("resnet50-0676ba61.pth", "resnet50-11ad3fa6.pth"),
    "resnet18": ("resnet18-f37072fd.pth",),
    "efficientnet-lite0": ("efficientnet-lite0-57934424.pth",),
    "efficientnet-lite1": ("efficientnet-lite1-77cc7160.pth",),
    "efficientnet-lite2": ("efficientnet-lite2-9656183e.pth",),
}
# Mean length of the activations of 48 photos. Networks that are not here are not joined with others.
LENGTHS = {"efficientnet-lite0": 11.95, "efficientnet-lite1": 9.77, "efficientnet-lite2": 9.39}
JOINED_LENGTH = 12.0
LIBRARIES = {"torchvision": from_torchvision, "timm": from_timm}


def construct(name: str, seed: int = 0, pretrained: bool = False) -> Construction:
    """name: one of NETWORKS, several of one (`resnet8+resnet8`), different ones of LENGTHS
    (`efficientnet-lite0+efficientnet-lite2`), `torchvision:NAME`, `timm:NAME` or `package.module:factory`.

    pretrained: torchvision or timm fetches its weights.
    """
    kind, colon, rest = name.partition(":")
    with seeded(seed):
        if name in NETWORKS:
            network = NETWORKS[name](1000)
            published = dict.fromkeys(PUBLISHED.get(name, ()))
            return Construction(name, network, network.transform, "fc", published, imagenet_wnids())
        if is_joined(name):
            drawn = [NETWORKS[part](1000) for part in name.split(JOINED_BY)]
            return replace(join_networks(name, drawn), has_weights=False)
        if is_ours(name):
            networks = [NETWORKS[part](1) for part in name.split(JOINED_BY)]
            return Construction(name, SideBySide(networks), networks[0].transform)
        if not colon or not kind or not rest:
            if JOINED_BY in name:
                raise InvalidInputError(
                    f"no backbone {name!r}: side by side stand different ones of {', '.join(LENGTHS)}, or several of "
                    "one network that was trained with `ppa pretrain --ensemble`"
                )
            close = difflib.get_close_matches(name.lower(), NETWORKS, n=1)
            advice = f"did you mean {close[0]}?" if close else "or torchvision:NAME, timm:NAME, package.module:factory"
            raise InvalidInputError(f"no backbone {name!r}; known: {', '.join(NETWORKS)}; {advice}")
        if kind in LIBRARIES:
            return LIBRARIES[kind](rest, pretrained)
        if pretrained:
            raise InvalidInputError(f"--pretrained is for resnet50, resnet18, torchvision:NAME, timm:NAME, got {name}")
        return _from_factory(kind, rest)


def is_ours(name: str | None) -> bool:
    """Whether it is one of NETWORKS, or several of them side by side: no name of code to run."""
    parts = (name or "").split(JOINED_BY)
    return (parts[0] in NETWORKS and len(set(parts)) == 1 and len(parts) <= MOST) or is_joined(name)


def is_joined(name: str | None) -> bool:
    """Whether it names different published networks side by side."""
    parts = (name or "").split(JOINED_BY)
    return len(set(parts)) == len(parts) > 1 and set(parts) <= set(LENGTHS)


def join_networks(name: str, networks: Sequence[nn.Module]) -> Construction:
    """networks: those that the name lists, with their weights; they become parts of the result."""
    lengths = [LENGTHS[part] for part in name.split(JOINED_BY)]
    module = Joined(networks, lengths)  # type: ignore[arg-type]
    return Construction(name, module, module.own_transform, "fc", {}, imagenet_wnids(), has_weights=True)


def build_network(name: str, num_classes: int, seed: int = 0) -> Network:
    """One of NETWORKS with fresh weights, to be trained."""
    require_trainable(name)
    with seeded(seed):
        return NETWORKS[name](num_classes)


def require_trainable(name: str) -> None:
    if name not in NETWORKS:
        raise InvalidInputError(f"only {', '.join(NETWORKS)} can be trained here, got {name!r}")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Layers draw their first weights from torch's global generator: seed it, and put it back after."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _from_factory(module_name: str, attribute: str) -> Construction:
    name = f"{module_name}:{attribute}"
    folder = str(Path.cwd())  # an installed command does not have the current folder on its path
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)  # last, so that it hides nothing
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's code may raise anything
        close = difflib.get_close_matches(module_name.lower(), LIBRARIES, n=1)
        advice = f"; did you mean {close[0]}:{attribute}?" if close else ""
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise InvalidInputError(f"backbone {name}: cannot import {module_name} ({said}){advice}") from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise InvalidInputError(f"backbone {name}: {module_name} has no callable {attribute!r}")
    try:
        network = factory if isinstance(factory, nn.Module) else factory()
    except Exception as error:
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise InvalidInputError(
            f"backbone {name} must make a network when it is called, it failed with {said}"
        ) from error
    if not isinstance(network, nn.Module):
        raise InvalidInputError(f"backbone {name} must return a torch.nn.Module, got {type(network).__name__}")
    transform: Any = getattr(factory, "transform", None) or getattr(network, "transform", None)
    if isinstance(transform, Mapping):
        transform = Transform.from_json(transform)
    elif transform is None or isinstance(transform, nn.Module):  # a layer of that name is the network's own business
        transform = IMAGENET
    elif not isinstance(transform, Transform):
        raise InvalidInputError(f"transform of {name} must be an actstore Transform, got {type(transform).__name__}")
    return Construction(name, network, transform, "fc" if isinstance(network, Network) else None, has_weights=True)
