from __future__ import annotations

import numpy as np
import pytest

from actstore.errors import InvalidInputError
from actstore.tables.row_source import TILE, SyntheticSpec

pytestmark = pytest.mark.numeric


def rows_of(spec: SyntheticSpec, start: int = 0, stop: int | None = None) -> np.ndarray:
    source = spec.table().activations
    return np.concatenate(list(source.blocks(start, spec.rows if stop is None else stop)))


def test_rows_do_not_depend_on_how_they_are_asked_for() -> None:
    spec = SyntheticSpec(rows=2 * TILE + 100, dim=24, classes=9, seed=4)
    whole = rows_of(spec)
    np.testing.assert_array_equal(rows_of(spec, 1000, TILE + 7), whole[1000 : TILE + 7])
    np.testing.assert_array_equal(rows_of(spec), whole)
    assert not np.array_equal(rows_of(SyntheticSpec(spec.rows, 24, 9, seed=5)), whole)


def test_labels_are_sorted_or_a_shuffle_of_the_same() -> None:
    ordered = SyntheticSpec(100, 8, 7).labels()
    shuffled = SyntheticSpec(100, 8, 7, shuffled=True).labels()
    assert (np.diff(ordered) >= 0).all()
    assert not np.array_equal(ordered, shuffled)
    np.testing.assert_array_equal(np.sort(shuffled), ordered)


def test_statistics_are_those_of_a_real_resnet_50() -> None:
    """The figures of 2,000 real rows of 100 classes (20 each), within the tolerance of the fit."""
    spec = SyntheticSpec(rows=2000, classes=100)
    values = rows_of(spec)
    norms = np.linalg.norm(values, axis=1)
    unit = values / norms[:, None]
    assert (values == 0).mean() == pytest.approx(0.26, abs=0.03)
    assert norms.mean() == pytest.approx(50.3, rel=0.05)
    spectrum = np.linalg.eigvalsh(unit @ unit.T / len(unit))[::-1]
    residual = np.sqrt(np.maximum(0, 1 - np.cumsum(spectrum)))
    for directions, real in ((32, 0.646), (64, 0.567), (128, 0.473), (256, 0.366), (512, 0.249)):
        assert residual[directions - 1] == pytest.approx(real, abs=0.04)
    cosine, labels = unit @ unit.T, spec.labels()
    same = labels[:, None] == labels[None]
    np.fill_diagonal(cosine, -1)
    assert (labels[cosine.argmax(1)] == labels).mean() == pytest.approx(0.61, abs=0.08)
    assert cosine[same & (cosine > -1)].mean() == pytest.approx(0.47, abs=0.06)
    assert cosine[~same].mean() == pytest.approx(0.30, abs=0.06)


@pytest.mark.parametrize("change", [{"rows": 0}, {"dim": 0}, {"classes": -1}])
def test_sizes_are_positive(change: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError, match="must be positive"):
        SyntheticSpec(**{"rows": 5, **change})
