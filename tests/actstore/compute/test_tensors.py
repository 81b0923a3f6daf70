"""Conversions by way of torch give what numpy gives, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from actstore.compute.tensors import convert_into

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
