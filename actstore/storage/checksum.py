"""A checksum inside the file that it covers: of JSON documents, and of whole safetensors files.

A file without one was written by an earlier version, or by somebody else, and is taken as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actstore.errors import DamagedError
from actstore.storage.atomic_file import crc32c, extend_crc32c

FIELD = "checksum"
BLANK = "00000000"  # what stands in the field while the checksum is computed
_IN_HEADER = re.compile(rb'"' + FIELD.encode() + rb'":"([0-9a-f]{8})"')
_BLOCK = 1 << 20  # bytes: in the cache, and other threads wait for no more


def document_checksum(document: Any) -> str:
    """crc32c of JSON, whatever spaces and escapes it was written with; hex."""
    return f"{crc32c(json.dumps(document, indent=2, ensure_ascii=False).encode('utf-8', 'surrogatepass')):08x}"


def with_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its checksum in it."""
    plain = {key: value for key, value in document.items() if key != FIELD}
    return {**plain, FIELD: document_checksum(plain)}


def check_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document without its checksum; ValueError where that is another one's."""
    plain = {key: value for key, value in document.items() if key != FIELD}
    if FIELD in document and document[FIELD] != (checksum := document_checksum(plain)):
        raise ValueError(f"its checksum is {checksum}, it says {document[FIELD]}")
    return plain


def require_sound_copy(path: Path) -> None:
    """A JSON file that repeats for people what another file says: damaged, it must not mislead them."""
    try:
        check_checksum(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return
    except (ValueError, AttributeError) as error:
        raise DamagedError(f"{path} is damaged ({error}); remove it: it only repeats what lies beside it") from error


def file_checksum(path: Path) -> str:
    """crc32c of all bytes of a file; hex."""
    crc, block = 0, memoryview(bytearray(_BLOCK))  # one block for all: fresh memory costs more than the checksum
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            crc = extend_crc32c(crc, block[:count])
    return f"{crc:08x}"


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
        while block := file.read(_BLOCK):
            crc = extend_crc32c(crc, block)
    if f"{crc:08x}" != field[1].decode():
        raise DamagedError(f"{path} is damaged: its checksum is {crc:08x}, it says {field[1].decode()}; {remedy}")
