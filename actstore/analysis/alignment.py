"""Which rows of several splits are of the same image: those with the same id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from actstore.layout.texts import Texts
from actstore.split import Split


@dataclass(frozen=True)
class Alignment:
    """rows: of each split (n,), so that row rows[i][j] of split i has the same id for every i.

    notes: whole sentences on what was left out, and why.
    """

    rows: tuple[NDArray[np.int64], ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows[0])


def align(splits: Sequence[Split], names: Sequence[str]) -> Alignment:
    """In the order of the first split. names: what the splits are called in notes and errors."""
    with_ids = [split.committed.has_ids for split in splits]
    if not any(with_ids):
        return _align_by_number(splits, names)
    if not all(with_ids):
        without = names[with_ids.index(False)]
        raise InvalidInputError(
            f"rows are aligned by id, but those of {without} have none; write them with the ids of the others"
        )
    ids: list[Texts] = [split.ids for split in splits]  # type: ignore[misc]  # as they all have some
    if all(_are_equal(ids[0], other) for other in ids[1:]):
        everything = np.arange(len(splits[0]))
        return Alignment((everything,) * len(splits))
    rows = _common_rows(ids, names)
    notes = [
        f"{name}: {len(split) - len(rows[0]):,} of {len(split):,} rows are left out, as no row of every other has "
        "their id, or more than one has"
        for name, split in zip(names, splits, strict=True)
        if len(split) > len(rows[0])
    ]
    return Alignment(rows, tuple(notes))


def _align_by_number(splits: Sequence[Split], names: Sequence[str]) -> Alignment:
    counts = {name: len(split) for name, split in zip(names, splits, strict=True)}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        raise InvalidInputError(f"rows have no ids to be aligned by, and their numbers differ: {listed}; write ids")
    return Alignment(
        (np.arange(len(splits[0])),) * len(splits),
        ("rows have no ids: row i of one is compared with row i of another",),
    )


def _are_equal(one: Texts, other: Texts) -> bool:
    return np.array_equal(one.offsets, other.offsets) and np.array_equal(one.data, other.data)


def _common_rows(ids: Sequence[Texts], names: Sequence[str]) -> tuple[NDArray[np.int64], ...]:
    """Of each split the rows whose id all have, once."""
    import pyarrow.compute

    from actstore.analysis.arrow import arrow_texts

    arrays = [arrow_texts(texts) for texts in ids]
    found_at = (pyarrow.compute.index_in(arrays[0], value_set=array) for array in arrays[1:])
    places = [np.arange(len(arrays[0])), *(at.fill_null(-1).to_numpy().astype(np.int64) for at in found_at)]
    common: NDArray[np.bool_] = np.all([found >= 0 for found in places], axis=0)
    for array in arrays:
        counts = array.value_counts()
        if len(counts) < len(array):
            repeated = counts.field("values").filter(pyarrow.compute.greater(counts.field("counts"), 1))
            common &= ~pyarrow.compute.is_in(arrays[0], value_set=repeated).to_numpy(zero_copy_only=False)
    if not common.any():
        examples = "; ".join(f"{name} has {texts[0]!r}" for name, texts in zip(names, ids, strict=True) if len(texts))
        raise InvalidInputError(f"no id is in all of them, so no row can be compared: {examples}")
    return tuple(found[common] for found in places)


def aligned_blocks(splits: Sequence[Split], alignment: Alignment, step: int) -> Iterator[list[NDArray[Any]]]:
    """The aligned rows in order, at most `step` at a time: one block (n, dim) of each split."""
    for start in range(0, len(alignment), step):
        yield [_read(split, rows[start : start + step]) for split, rows in zip(splits, alignment.rows, strict=True)]
        for split, rows in zip(splits, alignment.rows, strict=True):
            part = rows[start : start + step]
            split.rows.release(int(part.min()), int(part.max()) + 1)


def _read(split: Split, rows: NDArray[np.int64]) -> NDArray[Any]:
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows) and bool((np.diff(rows) == 1).all()):
        return split.rows.read(first, last + 1)
    return split.rows.take(rows)
