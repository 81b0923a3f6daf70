"""Texts of a store as Arrow arrays, over the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from actstore.layout.texts import Texts

if TYPE_CHECKING:
    import pyarrow


def arrow_texts(texts: Sequence[str]) -> pyarrow.LargeStringArray:
    """(n,) texts; those of a store are laid out as Arrow lays them out and are not copied."""
    import pyarrow

    if not isinstance(texts, Texts):
        return pyarrow.array(texts, pyarrow.large_string())
    buffers = [None, pyarrow.py_buffer(texts.offsets), pyarrow.py_buffer(texts.data)]
    return pyarrow.LargeStringArray.from_buffers(len(texts), buffers[1], buffers[2])
