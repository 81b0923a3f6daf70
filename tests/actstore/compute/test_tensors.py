"""Conversions give what numpy gives, to the bit, and checksums those of two passes; freed memory is used again."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from actstore.compute import tensors
from actstore.compute.tensors import convert_checked, convert_into
from actstore.storage.atomic_file import extend_crc32c

HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
FINITE = np.unique(HALVES[np.isfinite(HALVES)].astype(np.float64))
MIDDLES = np.concatenate([(FINITE[1:] + FINITE[:-1]) / 2, [65520.0, -65520.0]])  # exact; the last become infinite


def converted(values: NDArray[np.float64]) -> NDArray[np.float16]:
    out = np.empty(values.shape, np.float16)
    convert_into(out, values)
    return out


def assert_rounded_once(values: NDArray[np.float64]) -> None:
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    np.testing.assert_array_equal(converted(values).view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("direction", [-np.inf, 0.0, np.inf])
def test_values_amid_two_halves_and_close_to_there(direction: float) -> None:
    """All ties, subnormal ones and those of the largest value included, and what fp32 takes for a tie."""
    for values in (MIDDLES, FINITE):
        for away in (0.0, 1e-16, 1e-12, 1e-9, 3e-8, 1e-7):
            moved = values * (1 + np.sign(direction) * away)
            assert_rounded_once(moved)
        assert_rounded_once(np.nextafter(values, direction))


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=40), st.integers(1, 3))
@example([65519.999999, 65520.0, 65504.1, -1e300, 5e-324, 2.0**-25, 2.0**-25 * (1 + 1e-12), 0.0, -0.0], 1)
def test_any_doubles(values: list[float], step: int) -> None:
    rows = np.array(values * step)
    assert_rounded_once(rows[::step])
    assert_rounded_once(np.array([values] * 3)[:, ::step])


@given(st.lists(st.tuples(st.sampled_from(list(MIDDLES)), st.floats(-1e-7, 1e-7)), min_size=1, max_size=40))
def test_doubles_around_ties(near: list[tuple[float, float]]) -> None:
    assert_rounded_once(np.array([value * (1 + away) for value, away in near]))


def test_what_is_no_number_and_what_is_nothing() -> None:
    values = np.array([[np.nan, np.inf], [-np.inf, 1e5]])
    np.testing.assert_array_equal(converted(values), [[np.nan, np.inf], [-np.inf, np.inf]])
    assert converted(np.empty((0, 4))).shape == (0, 4)
    assert converted(np.empty((4, 0))).shape == (4, 0)
    assert converted(np.float64(0.1) * np.ones(())).shape == ()


def test_many_rows() -> None:
    values = np.random.default_rng(0).standard_normal((700, 301)) * 10
    values[::7] = np.resize(MIDDLES, values[::7].shape) * (1 + 1e-12)
    assert_rounded_once(values)


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (1, 127), (1, 128), (2, 128), (5, 130), (64, 512)])
def test_values_and_crc_are_those_of_two_passes(
    shape: tuple[int, int], is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(tensors, "_compiled", lambda: None)
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


FAULTS = """
import resource, sys
import torch
from actstore.compute.tensors import reuse_freed_memory
torch.set_num_threads(1)
took = sys.argv[1] == "reuse" and reuse_freed_memory()
layers = [torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3), torch.nn.ReLU()]
network, images = torch.nn.Sequential(*layers), torch.rand(16, 3, 96, 96)  # outputs of 35 MiB, freed in every step
def use():
    network(images).sum().backward()
use()
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
use()
print(int(took), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's settings")
def test_the_buffers_of_a_network_are_used_again() -> None:
    faults = {}
    for mode in ("plain", "reuse"):
        done = subprocess.run([sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=True)
        took, count = map(int, done.stdout.split())
        if mode == "reuse" and not took:
            pytest.skip("this C library has no mallopt")
        faults[mode] = count
    assert faults["reuse"] < faults["plain"] / 2
