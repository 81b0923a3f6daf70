"""Rows that commands put into a store, and whether what is read back is some of them, whole and in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from actstore.split import Split

DIM = 64
CLASSES = ("ant", "bee", "cat", "dog")
K = 8


@dataclass(frozen=True)
class Rows:
    """values (n, DIM) float16, names of classes, ids, and two columns."""

    values: NDArray[Any]
    classes: tuple[str, ...]
    ids: tuple[str, ...]
    areas: tuple[float, ...]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)

    def __add__(self, other: Rows) -> Rows:
        return Rows(
            np.concatenate([self.values, other.values]), self.classes + other.classes, self.ids + other.ids,
            self.areas + other.areas, self.notes + other.notes,
        )  # fmt: skip

    def pick(self, rows: Sequence[int]) -> Rows:
        lists = (self.classes, self.ids, self.areas, self.notes)
        return Rows(self.values[list(rows)], *(tuple(values[row] for row in rows) for values in lists))

    @property
    def columns(self) -> dict[str, Any]:
        return {"area": np.array(self.areas), "note": np.array(self.notes, dtype=object)}

    def difference(self, other: Rows) -> str | None:
        """The first thing that is not the same."""
        if len(self) != len(other):
            return f"{len(self)} rows instead of {len(other)}"
        for what in ("ids", "classes", "areas", "notes"):
            mine, theirs = getattr(self, what), getattr(other, what)
            for row, (one, two) in enumerate(zip(mine, theirs, strict=True)):
                if one != two:
                    wrong = sum(a != b for a, b in zip(mine, theirs, strict=True))
                    return f"{what} of row {row} is {one!r} instead of {two!r} ({wrong} rows differ)"
        equal = (self.values.view(np.uint16) == other.values.view(np.uint16)).all(1)
        if not equal.all():
            return f"values of row {int(equal.argmin())} are others ({int((~equal).sum())} rows differ)"
        return None


def make_rows(tag: str, count: int, classes: Sequence[str] = CLASSES[1:]) -> Rows:
    """No row has the first class, so that a label of 0 is always a wrong one."""
    draw = np.random.default_rng(crc32(tag.encode()))
    scales = 0.85 ** np.arange(DIM)  # leading coordinates tell rows apart, so that a bounded index prunes
    values = (draw.standard_normal((count, DIM)) * scales * 4).astype(np.float16)
    numbers = range(count)
    return Rows(
        values,
        tuple(classes[number * 7 % len(classes)] for number in numbers),
        tuple(f"{tag}/{number}.jpg" for number in numbers),
        tuple(round(float(area), 3) for area in draw.random(count)),
        tuple(f"{tag} {number}" for number in numbers),
    )


def read_rows(split: Split, rows_first: bool = True) -> Rows:
    """All of a split, in the given order of access; every part is a copy."""
    values = np.array(split.take(np.arange(len(split)))) if rows_first else None
    classes = tuple(split.classes[label] if label >= 0 else "" for label in split.labels.tolist())
    ids = tuple(split.ids)
    areas = tuple(np.asarray(split.columns["area"]).tolist())
    notes = tuple(np.asarray(split.columns["note"]).tolist())
    if values is None:
        values = np.array(split.take(np.arange(len(split))))
    return Rows(values, classes, ids, areas, notes)


@dataclass(frozen=True)
class Possible:
    """What a split may hold: one of some bases, then blocks of appends, each at most once, in any order."""

    bases: tuple[Rows, ...]
    blocks: Mapping[str, Rows]

    def explain(self, rows: Rows, required: Sequence[str] = (), allowed: Sequence[str] | None = None) -> str | None:
        """None where these rows are a state with all the required blocks and none but the allowed; else why not."""
        said = ""
        for names, state in self.each(required, allowed):
            if len(state) == len(rows):
                if (difference := rows.difference(state)) is None:
                    return None
                said = said or f"{difference} [as {'+'.join(('before', *names))}]"
        counts = sorted({len(state) for _, state in self.each(required, allowed)})
        return said or f"{len(rows)} rows, expected {' or '.join(map(str, counts))}"

    def each(
        self, required: Sequence[str] = (), allowed: Sequence[str] | None = None
    ) -> Iterator[tuple[tuple[str, ...], Rows]]:
        names = [name for name in self.blocks if allowed is None or name in allowed or name in required]
        for base in self.bases:
            for count in range(len(names) + 1):
                for order in permutations(names, count):
                    if set(required) <= set(order):
                        state = base
                        for name in order:
                            state = state + self.blocks[name]
                        yield order, state


def queries() -> NDArray[np.float32]:
    return make_rows("query", 3).values.astype(np.float32)


def wrong_neighbours(scores: NDArray[Any], rows: NDArray[Any], state: Rows) -> str | None:
    """What differs from all products in float64; random values have no ties."""
    if len(rows) and int(rows.max()) >= len(state):
        return f"row {int(rows.max())} of {len(state)}"
    values, wanted = state.values.astype(np.float64), queries().astype(np.float64)
    cosines = (wanted / np.linalg.norm(wanted, axis=1, keepdims=True)) @ (
        values / np.linalg.norm(values, axis=1, keepdims=True)
    ).T
    best = np.argsort(-cosines, axis=1, kind="stable")[:, : rows.shape[1]]
    if not np.array_equal(best, rows):
        return f"rows {rows[0].tolist()} instead of {best[0].tolist()}"
    if not np.allclose(np.take_along_axis(cosines, best, 1), scores, atol=1e-4):
        return f"scores {scores[0].tolist()}"
    return None
