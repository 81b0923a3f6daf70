"""Networks of torchvision and timm, and the weights these libraries fetch for them."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any, NoReturn

from torch import nn

from actstore.backbones.imagenet import imagenet_wnids
from actstore.backbones.network import Construction
from actstore.backbones.transform import Transform
from actstore.errors import InvalidInputError

BROKEN_IMPORT = (ImportError, RuntimeError, OSError, AttributeError)  # torchvision built for another torch


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
    if pretrained:
        entry = entries[0] if tag else weights.DEFAULT
        exact = f"torchvision:{name}.{entry.name}"
        try:
            module.load_state_dict(entry.get_state_dict(progress=False, check_hash=True))
        except Exception as error:  # noqa: BLE001 - whatever its downloader raises
            _not_fetched(exact, error, entry.url)
        transform = _preset(entry.transforms()) or Transform(resize=256, crop=224)
        return Construction(exact, module, transform, head, {}, classes, has_weights=True)
    published = {Path(entry.url).name: _preset(entry.transforms()) for entry in entries}
    transform = next((preset for preset in published.values() if preset), Transform(resize=256, crop=224))
    return Construction(f"torchvision:{model}", module, transform, head, published, classes)


def _preset(preset: Any) -> Transform | None:
    """torchvision's own description of what its weights expect; None for tasks other than classification."""
    if not hasattr(preset, "resize_size") or not hasattr(preset, "crop_size"):
        return None
    interpolation = preset.interpolation.value
    return Transform(preset.resize_size[0], preset.crop_size[0], preset.mean, preset.std, interpolation)


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
    classes = imagenet_wnids() if tag and "in1k" in tag else None
    return Construction(name, module, transform, _classifier(module), {}, classes, has_weights=pretrained)


def _not_fetched(name: str, error: Exception, url: str) -> NoReturn:
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    raise InvalidInputError(
        f"the weights of {name} could not be fetched ({reason}); without internet, download them elsewhere from {url} "
        "and pass them with --weights FILE instead of --pretrained"
    ) from error


def _optional(library: str) -> Any:
    package = library.partition(".")[0]
    try:
        return importlib.import_module(library)
    except BROKEN_IMPORT as error:
        reason = str(error).partition("\n")[0]
        raise InvalidInputError(
            f"{package}:NAME needs {package}, which cannot be imported ({reason}); "
            "install it, or use a network of actstore such as efficientnet-lite0 or resnet50"
        ) from error


def _classifier(module: Any) -> str | None:
    """timm says itself what its classifier is; networks without one, such as DINO's, give the activation."""
    if not hasattr(module, "get_classifier"):
        return last_linear(module)
    classifier = module.get_classifier()
    first = classifier[0] if isinstance(classifier, tuple) else classifier  # distilled ones have two
    return next((name for name, part in module.named_modules() if part is first and isinstance(part, nn.Linear)), None)


def last_linear(module: nn.Module) -> str | None:
    """The classifier comes last in published networks; what it reads is the activation."""
    return next((name for name, part in reversed(list(module.named_modules())) if isinstance(part, nn.Linear)), None)
