"""Groups of similar categories, found from the data: the tightest neighbourhoods that lie apart from each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def unit_rows(rows: NDArray[Any]) -> NDArray[np.float64]:
    """(n, dim) of length 1; a row of zeros stays one."""
    values = np.asarray(rows, np.float64)
    found: NDArray[np.float64] = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    return found


def cosines(rows: NDArray[Any]) -> NDArray[np.float64]:
    """(n, dim) -> (n, n), -inf on the diagonal: nothing is its own neighbour."""
    units = unit_rows(rows)
    found: NDArray[np.float64] = units @ units.T
    np.fill_diagonal(found, -np.inf)
    return found


def nearest_rows(rows: NDArray[Any], count: int) -> NDArray[np.int64]:
    """(n, dim) -> (n, count) of highest cosine, the nearest first."""
    order: NDArray[np.int64] = np.argsort(-cosines(rows), axis=1, kind="stable")[:, : min(count, len(rows) - 1)]
    return order


def similar_groups(rows: NDArray[Any], groups: int, size: int) -> list[list[int]]:
    """Up to `groups` disjoint lists of `size` rows of (n, dim): a row and its nearest ones by cosine.

    The tightest neighbourhood comes first; a later one is centred farther from the earlier centres than half of all
    pairs are, so that the groups show different regions.
    """
    similar = cosines(rows)
    if size < 2 or len(similar) < size:
        return []
    nearest = np.argsort(-similar, axis=1, kind="stable")[:, : size - 1]
    tightness = np.take_along_axis(similar, nearest, 1).mean(1)
    far = float(np.median(similar[np.isfinite(similar)]))
    found: list[list[int]] = []
    for centre in np.argsort(-tightness, kind="stable").tolist():
        members = [centre, *nearest[centre].tolist()]
        taken = {member for group in found for member in group}
        is_apart = all(similar[centre, group[0]] <= far for group in found)
        if is_apart and not taken & set(members):
            found.append(members)
        if len(found) == groups:
            break
    return found


def shared_neighbours(first: NDArray[Any], second: NDArray[Any], count: int) -> float:
    """The share of each row's `count` nearest rows that both sets (n, dim), (n, any) have in common, mean over rows."""
    pairs = zip(nearest_rows(first, count), nearest_rows(second, count), strict=True)
    return float(np.mean([len(np.intersect1d(ours, theirs)) / len(ours) for ours, theirs in pairs]))
