"""Rows converted and checked in one pass, by the compiled loop and without it."""

from __future__ import annotations

import numpy as np
import pytest

from actstore.compute import halves
from actstore.compute.halves import convert_checked
from actstore.storage.atomic_file import extend_crc32c


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (1, 127), (1, 128), (2, 128), (5, 130), (64, 512)])
def test_values_and_crc_are_those_of_two_passes(
    shape: tuple[int, int], is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(halves, "_compiled", lambda: None)
    bits = np.random.default_rng(0).integers(0, 1 << 16, shape, dtype=np.uint16)
    values, out = bits.view(np.float16), np.full(shape, -1, np.float32)
    for crc in (0, 0xDEADBEEF):
        assert convert_checked(out, values, crc) == extend_crc32c(crc, values.view(np.uint8))
        np.testing.assert_array_equal(out, values.astype(np.float32))


def test_parts_in_a_row_give_the_crc_of_all() -> None:
    values = np.arange(2048, dtype=np.float16).reshape(8, 256)
    out, crc = np.empty((8, 256), np.float32), 0
    for start in range(0, 8, 3):
        part = slice(start, start + 3)
        crc = convert_checked(out[part], values[part], crc)
    assert crc == extend_crc32c(0, values.view(np.uint8))


def test_float32_rows_are_copied_and_checked() -> None:
    values, out = np.ones((3, 5), np.float32), np.zeros((3, 5), np.float32)
    assert convert_checked(out, values, 7) == extend_crc32c(7, values.view(np.uint8))
    np.testing.assert_array_equal(out, values)
