"""Files of weights: read without running code, fitted strictly, identified by a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from actstore.backbones.network import Transform
from actstore.errors import InvalidInputError
from actstore.storage.tensor_file import load_tensors, read_torch_file, require_finite, save_tensors

WRAPPERS = ("state_dict", "model")  # keys under which training scripts keep the weights
PREFIXES = ("module.", "_orig_mod.")  # left by DataParallel and torch.compile


@dataclass(frozen=True)
class Weights:
    """A state dict, and what the file says about it."""

    path: Path
    tensors: dict[str, Tensor]
    backbone: str | None = None
    classes: tuple[str, ...] | None = None  # in the order of fc's rows
    transform: Transform | None = None


def read_weights(path: Path) -> Weights:
    if not path.is_file():
        raise InvalidInputError(f"no weights file at {path}")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix in (".pth", ".pt"):
        advice = "save it again with torch.save(model.state_dict(), FILE) or as .safetensors"
        tensors = _unwrap(read_torch_file(path, advice), path)
        require_finite(path, tensors, "get the file again")
        return Weights(path, tensors)
    raise InvalidInputError(f"weights must be a .pth, .pt or .safetensors file, got {path}")


def save_weights(
    path: Path,
    module: nn.Module,
    backbone: str,
    classes: Sequence[str] | None = None,
    transform: Transform | None = None,
) -> None:
    """A .safetensors file that `load_backbone` reads back with its class names and transform."""
    metadata = {"backbone": json.dumps(backbone)}
    if classes is not None:
        metadata["classes"] = json.dumps(list(classes))
    if transform is not None:
        metadata["transform"] = json.dumps(transform.to_json())
    save_tensors(path, module.state_dict(), metadata)


def _read_safetensors(path: Path) -> Weights:
    tensors, metadata = load_tensors(path, "get the file again, or train it again")
    transform = _parse(metadata, "transform", dict, path)
    classes = _parse(metadata, "classes", list, path)
    return Weights(
        path,
        _unwrap(tensors, path),
        metadata["backbone"].strip('"') if "backbone" in metadata else None,  # plain or JSON
        None if classes is None else tuple(str(name) for name in classes),
        None if transform is None else Transform.from_json(transform),
    )


def _parse(metadata: Mapping[str, str], key: str, kind: type, path: Path) -> Any:
    if key not in metadata:
        return None
    try:
        value = json.loads(metadata[key])
    except ValueError:
        value = None
    if not isinstance(value, kind):
        raise InvalidInputError(
            f"metadata {key!r} of {path} must be a JSON {kind.__name__}, got {metadata[key][:80]!r}"
        )
    return value


def _unwrap(contents: Any, path: Path) -> dict[str, Tensor]:
    """The state dict itself, whatever a training script wrapped around it."""
    while isinstance(contents, Mapping):
        inner = next((contents[key] for key in WRAPPERS if isinstance(contents.get(key), Mapping)), None)
        if inner is None:
            break
        contents = inner
    if not isinstance(contents, Mapping) or not contents:
        raise InvalidInputError(f"{path} must hold a dict of tensors, got {type(contents).__name__}")
    for name, value in contents.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InvalidInputError(f"{path} must hold tensors only, got {type(value).__name__} under {name!r}")
    tensors = dict(contents)
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def fit_weights(module: nn.Module, weights: Weights, name: str, head: str | None) -> None:
    """Load strictly; only the number of classes of the classifier `head` may differ, and follows the file."""
    where = f"{weights.path} does not fit {name}"
    if weights.backbone not in (None, name):
        raise InvalidInputError(f"{where}: it holds weights of {weights.backbone}; pass --backbone {weights.backbone}")
    tensors = _public_names(weights.tensors, module.state_dict())
    if head is not None:
        _resize_head(module, head, tensors.get(f"{head}.weight"))
    expected = module.state_dict()
    for key, tensor in expected.items():
        if key.endswith("num_batches_tracked"):  # absent from old files; evaluation does not use it
            tensors.setdefault(key, tensor)
        if key not in tensors:
            raise InvalidInputError(f"{where}: {key} is missing, expected shape {tuple(tensor.shape)}")
        if tensors[key].shape != tensor.shape:
            raise InvalidInputError(
                f"{where}: {key} has shape {tuple(tensors[key].shape)}, expected {tuple(tensor.shape)}"
            )
    extra = next((key for key in tensors if key not in expected), None)
    if extra is not None:
        raise InvalidInputError(f"{where}: {extra} of shape {tuple(tensors[extra].shape)} is not part of {name}")
    module.load_state_dict(tensors)
    _check_classes(weights, tensors.get(f"{head}.weight"))


def _public_names(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Published EfficientNets write an underscore before each part of a name, as in _blocks.0._bn1.bias."""
    if tensors.keys() & expected.keys() or not all(name.startswith("_") for name in tensors):
        return dict(tensors)
    return {".".join(part.removeprefix("_") for part in name.split(".")): value for name, value in tensors.items()}


def _resize_head(module: nn.Module, head: str, weight: Tensor | None) -> None:
    layer = module.get_submodule(head)
    if not isinstance(layer, nn.Linear) or weight is None or weight.ndim != 2:
        return
    n_class, dim = weight.shape
    if dim == layer.in_features and n_class not in (0, layer.out_features):
        bias = layer.bias is not None
        empty = nn.Linear(dim, n_class, bias=bias, device="meta").to_empty(device="cpu")  # the file fills it
        module.set_submodule(head, empty)


def _check_classes(weights: Weights, head: Tensor | None) -> None:
    if weights.classes is not None and head is not None and len(weights.classes) != len(head):
        raise InvalidInputError(
            f"{weights.path} names {len(weights.classes)} classes, but its classifier has {len(head)}; write it again"
        )


def weights_sha256(module: nn.Module) -> str:
    """Of the sorted (name, dtype, shape, bytes) of the state dict: equal for equal weights in any file format."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
