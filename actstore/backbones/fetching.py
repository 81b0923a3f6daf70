"""Published weights fetched over the internet into torch's own cache: whole and checked, or not at all."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen
from uuid import uuid4

from actstore.backbones.construction import PUBLISHED
from actstore.backbones.packages import torch_cache
from actstore.errors import DamagedError, StorageError, UnreachableError, reason_of

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
