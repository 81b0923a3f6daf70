"""crc32c of memory, and a file of values that ends with it, as Zarr's codec pair `bytes` + `crc32c` makes one."""

from __future__ import annotations

from typing import cast

from awscrt import checksums

from actstore.storage.atomic_file import Data, as_bytes

CRC_BYTES = 4


def crc32c(data: Data) -> int:
    return extend_crc32c(0, data)


def extend_crc32c(crc: int, data: Data) -> int:
    """The crc of what `crc` covers followed by `data`."""
    return cast(int, checksums.crc32c(as_bytes(data), crc))


def chunk_parts(values: Data, crc: int) -> tuple[Data, Data]:
    """What a chunk file is made of: the bytes of its values, then their crc32c in four little-endian bytes."""
    return values, crc.to_bytes(CRC_BYTES, "little")
