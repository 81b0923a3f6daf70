from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from actstore import ActivationStore
from actstore.reading import mapped_rows

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a call of Linux")


def forget(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def bytes_read() -> int:
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["read_bytes"])


@pytest.mark.parametrize("dim", [512, 2048])  # rows of a quarter of a page, and of a page
def test_sparse_rows_of_a_large_store_are_right_and_read_little(
    make_store: Callable[..., ActivationStore], monkeypatch: pytest.MonkeyPatch, dim: int
) -> None:
    monkeypatch.setattr(mapped_rows, "memory", lambda: 0)
    store = make_store(rows=20_000, dim=dim, chunk_rows=4096)
    rows = np.arange(17, 20_000, 1333)
    forget(store.path)
    split = store["train"]
    split.take([0])
    before = bytes_read()
    np.testing.assert_array_equal(split.take(rows), store.values[rows])  # type: ignore[attr-defined]
    assert bytes_read() - before < 4 << 20  # of 20 MB and more; nothing at all where the disk is a RAM disk


def test_it_pays_only_where_memory_cannot_hold_the_store() -> None:
    assert mapped_rows.announcing_helps(mapped_rows.memory())
    assert not mapped_rows.announcing_helps(mapped_rows.memory() // 4)
