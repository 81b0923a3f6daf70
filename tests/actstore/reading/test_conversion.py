"""Rows in another type: what is stored stays what comes out unless another type is asked for, and nothing overflows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from actstore.errors import InvalidInputError


@pytest.fixture(params=["f2", "f4"])
def store(request: pytest.FixtureRequest, make_store: Any) -> Any:
    return make_store(rows=300, dtype=request.param)


def test_rows_come_in_the_type_they_are_stored_in(store: Any) -> None:
    train = store["train"]
    blocks = next(train.blocks())
    for values in (train.take([1, 2]), train[:3], train[[4]], train[5], train.of_class(0), blocks):
        assert values.dtype == train.dtype
    assert train.means().dtype == np.float32
    np.testing.assert_array_equal(train.means(dtype="f8"), train.statistics().mean)
    np.testing.assert_array_equal(train.means(dtype="f8").astype("f4"), train.means())
    with pytest.raises(InvalidInputError, match="f2"):
        train.means(dtype="f2")


@pytest.mark.parametrize("dtype", ["f4", np.float32, "f8", np.float64])
def test_a_wider_type_changes_no_value(store: Any, dtype: Any) -> None:
    train, rows = store["train"], [7, 299, 7, 0]
    blocks = np.concatenate(list(train.blocks(41, dtype=dtype)))
    for values, expected in (
        (train.take(rows, dtype=dtype), store.values[rows]),
        (train.of_class(store.classes[1], dtype=dtype), store.values[store.labels == 1]),
        (blocks, store.values),
    ):
        assert values.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(values, expected.astype(dtype))


@pytest.mark.parametrize("dtype", ["i4", "c8", "text", ">f2x", np.longdouble, object])
def test_types_that_cannot_hold_rows_are_refused(store: Any, dtype: Any) -> None:
    with pytest.raises(InvalidInputError, match="dtype"):
        store["train"].take([0], dtype=dtype)


def test_a_narrower_type_is_refused(make_store: Any) -> None:
    with pytest.raises(InvalidInputError, match="float32"):
        make_store(dtype="f4")["train"].take([0], dtype="f2")


@pytest.mark.parametrize("key", [5, slice(3, 200), [4, 2, 2], ..., (slice(0, 9), [3, 1]), (7, 3), ([4, -1], 2)])
def test_the_view_indexes_as_the_split_does(store: Any, key: Any) -> None:
    values = store["train"].f4[key]
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, store.values[key].astype(np.float32))


def test_the_view_is_an_array_to_numpy(store: Any) -> None:
    view, plain = store["train"].f4, store.values.astype(np.float32)
    assert view.shape == plain.shape
    assert (len(view), view.ndim) == (300, 2)
    np.testing.assert_array_equal(np.asarray(view), plain)
    np.testing.assert_array_equal(np.asarray(view, np.float64), plain.astype(np.float64))
    np.testing.assert_array_equal(view.take([3, 1]), plain[[3, 1]])
    np.testing.assert_array_equal(view.of_class(2), plain[store.labels == 2])
    np.testing.assert_array_equal(np.concatenate(list(view.blocks(64))), plain)
    np.testing.assert_array_equal(view.T, plain.T)
    assert np.array(view, copy=True).flags.writeable
    np.testing.assert_allclose(view @ plain[0], plain @ plain[0], rtol=1e-6)
    np.testing.assert_array_equal(view - 1, plain - 1)
    np.testing.assert_array_equal(plain[0] * view, plain[0] * plain)
    np.testing.assert_array_equal(view == view, np.ones(plain.shape, bool))
    np.testing.assert_array_equal(np.maximum.reduce(view), plain.max(0))
    changed = plain.copy()
    changed += view
    np.testing.assert_array_equal(changed, plain + plain)


def test_the_view_is_not_written_to(store: Any) -> None:
    view, plain = store["train"].f4, store.values.astype(np.float32)
    with pytest.raises(InvalidInputError, match="not written to, as add in place"):
        view += 1
    with pytest.raises(InvalidInputError, match="not written to, as exp in place"):
        np.exp(plain, out=view)
    with pytest.raises(InvalidInputError, match="not written to, as negative in place"):
        np.negative.at(view, [3])
    np.testing.assert_array_equal(view, plain)


def test_products_that_overflow_float16_are_finite_in_the_view(make_store: Any, tmp_path: Any) -> None:
    import actstore

    values = np.full((4, 64), 100, np.float16)  # a product is 640,000
    train = actstore.from_arrays(tmp_path / "large.zarr", {"train": (values, None)})["train"]
    with np.errstate(over="ignore"):
        assert np.isinf(train[:] @ train[:].T).all()
    gram = train.f4 @ train.f4.T
    np.testing.assert_array_equal(gram, np.full((4, 4), 640_000, np.float32))
