"""A raw chunk file: the bytes of its values, then their crc32c in four little-endian bytes.

This is what Zarr's codec pair `bytes` + `crc32c` produces, so every Zarr reader can read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import google_crc32c

from actstore.files import Data, as_bytes

if TYPE_CHECKING:
    from actstore.places import Place

CRC_BYTES = 4


def crc32c(data: Data) -> int:
    return extend_crc32c(0, data)


def extend_crc32c(crc: int, data: Data) -> int:
    """The crc of what `crc` covers followed by `data`."""
    # The C extension refuses memoryviews, but takes any array without a copy.
    return cast(int, google_crc32c.extend(crc, as_bytes(data)))


def chunk_path(array: Place, chunk: int, ndim: int = 2) -> Place:
    """Where Zarr's default key encoding puts chunk number `chunk` along the first axis."""
    path = array / "c" / str(chunk)
    return path / "0" if ndim == 2 else path


def chunk_parts(values: Data, crc: int) -> tuple[Data, Data]:
    """What a chunk file is made of."""
    return values, crc.to_bytes(CRC_BYTES, "little")
