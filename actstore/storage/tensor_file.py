"""Files of tensors: safetensors with a JSON description and a checksum inside, written atomically; those of torch.save
are only read, and without running code."""

from __future__ import annotations

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actstore.errors import DamagedError, InvalidInputError
from actstore.storage.atomic_file import BLOCK_BYTES, FIELD, as_utf8, crc32c, extend_crc32c, write_atomic

_KEY = "actstore"
BLANK = "00000000"  # what stands in the field while the checksum is computed
_IN_HEADER = re.compile(rb'"' + FIELD.encode() + rb'":"([0-9a-f]{8})"')
# Whatever a file that is no checkpoint makes torch.load stumble over.
DAMAGE = (RuntimeError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError, AssertionError)


def write_tensors(path: Path, kind: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """One file for both, so that tensors and description can never be of different moments."""
    text = json.dumps({"kind": kind, **about}, ensure_ascii=False)
    save_tensors(path, tensors, {_KEY: as_utf8(text).decode()})


def read_tensors(path: Path, kind: str, remedy: str = "make it again") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and description of a file that `write_tensors` wrote as this kind. remedy: if it is damaged."""
    if not path.is_file():
        raise InvalidInputError(f"no {kind} at {path}")
    tensors, metadata = load_tensors(path, f"expected a {kind}; {remedy}")
    about = _parse(metadata.get(_KEY))
    if about.get("kind") != kind:
        other = about.get("kind") or "safetensors file of something else"
        raise InvalidInputError(f"{path} must be a {kind}, got a {other}")
    return tensors, about


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file with a checksum of all of it in its metadata."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, *seal_header(save(plain), metadata))


def load_tensors(path: Path, remedy: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of any safetensors file; refused where it is damaged or holds a NaN or an infinity.

    remedy: what a message ends with.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    require_header(path, remedy)
    try:
        with safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
        tensors = load_file(path)
    except SafetensorError as error:
        # a pickle ends up here too: it is never opened as one, since opening a pickle can run what is in it
        raise DamagedError(f"{path} is damaged or no safetensors file ({error}); {remedy}") from error
    metadata.pop(FIELD, None)
    require_finite(path, tensors, remedy)
    return tensors, metadata


def seal_header(data: bytes, metadata: Mapping[str, str]) -> tuple[bytes, memoryview]:
    """A safetensors file in memory -> its beginning with the metadata and a checksum of the whole file, and the rest.

    The library writes metadata in an order that changes from run to run; here equal content gives equal files.
    """
    size = int.from_bytes(data[:8], "little")
    tensors, rest = json.loads(data[8 : 8 + size]), memoryview(data)[8 + size :]
    header = {"__metadata__": {**metadata, FIELD: BLANK}, **tensors}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # data begins at a multiple of eight bytes
    head = len(text).to_bytes(8, "little") + text
    crc = f"{extend_crc32c(crc32c(head), rest):08x}".encode()
    return head.replace(_line(BLANK), _line(crc.decode()), 1), rest


def _line(value: str) -> bytes:
    return f'"{FIELD}":"{value}"'.encode()


def require_header(path: Path, remedy: str) -> None:
    """Refuse a safetensors file that is not what was written. It may be as large as memory, so it is read in blocks."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        file.seek(0)
        head = file.read(8 + min(size, 100 << 20))  # the library's own limit
        field = _IN_HEADER.search(head, 8)
        if field is None:
            return
        crc = crc32c(head[: field.start(1)] + BLANK.encode() + head[field.end(1) :])
        while block := file.read(BLOCK_BYTES):
            crc = extend_crc32c(crc, block)
    if f"{crc:08x}" != field[1].decode():
        raise DamagedError(f"{path} is damaged: its checksum is {crc:08x}, it says {field[1].decode()}; {remedy}")


def require_finite(path: Path, tensors: Mapping[str, Tensor], remedy: str) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise DamagedError(f"{path} is damaged: {name} holds a NaN or an infinity; {remedy}")


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _parse(text: str | None) -> dict[str, Any]:
    """Empty where others wrote the file, or this library something else."""
    try:
        about = json.loads(text or "{}")
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}


def read_torch_file(path: Path, advice: str, mapped: bool = False) -> Any:
    """What a file holds, on the CPU; anything but tensors and plain containers is refused.

    mapped: leave tensors in the file until they are touched, where its format allows that.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about the pickle's protocol; what matters is raised
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped and zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL (\w+\.[\w.]+)", str(error))
        what = f"the object {refused[1]!r}" if refused else "something else, or is damaged"
        raise InvalidInputError(f"{path} must hold tensors only, but holds {what}; {advice}") from error
    except DAMAGE as error:
        raise InvalidInputError(
            f"{path} is damaged or no file of torch.save ({type(error).__name__}); {advice}"
        ) from error
