"""What belongs to rows beside their activations, on its way into a split: labels, ids and columns."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.layout.columns import Column
from actstore.layout.texts import Texts
from actstore.spec import ColumnKind

_COLUMN = "column/"  # what the names of columns begin with in a file of facts: column/KIND/NAME


@dataclass(frozen=True)
class RowFacts:
    """Labels (n,); encoded ids (n,) where the split has them; columns by name, (n,) each."""

    labels: NDArray[np.int32]
    ids: list[bytes] | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int) -> RowFacts:
        ids = None if self.ids is None else self.ids[start:stop]
        return RowFacts(
            self.labels[start:stop], ids, {name: one.part(start, stop) for name, one in self.columns.items()}
        )

    def column(self, name: str, kind: ColumnKind) -> Column:
        """Without a value where these rows came without the column."""
        return self.columns[name] if name in self.columns else Column.nothing(kind, len(self))


def join_facts(parts: Sequence[RowFacts], kinds: Mapping[str, ColumnKind]) -> RowFacts:
    """Of consecutive rows, with all the columns of `kinds`."""
    labels = np.concatenate([np.empty(0, np.int32), *(part.labels for part in parts)])
    known = [part.ids for part in parts if part.ids is not None]
    ids = [name for some in known for name in some] if known else None
    columns = {name: Column.joined(kind, [part.column(name, kind) for part in parts]) for name, kind in kinds.items()}
    return RowFacts(labels, ids, columns)


def pack(facts: RowFacts, **more: NDArray[Any]) -> memoryview:
    """The bytes of a file that holds them."""
    arrays: dict[str, NDArray[Any]] = {"labels": facts.labels, **more}
    if facts.ids is not None:
        arrays["lengths"] = np.array([len(name) for name in facts.ids], np.int32)
        arrays["bytes"] = np.frombuffer(b"".join(facts.ids), np.uint8)
    for name, column in facts.columns.items():
        key = f"{_COLUMN}{column.kind}/{name}"
        if isinstance(column.stored, Texts):
            arrays[key], arrays[f"{key}/bytes"] = column.stored.offsets, column.stored.data
        else:
            arrays[key] = column.stored
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    return stream.getbuffer()


def unpack(arrays: Mapping[str, NDArray[Any]]) -> RowFacts:
    ids, columns = None, {}
    if "lengths" in arrays:
        ends = np.cumsum(arrays["lengths"])
        data = arrays["bytes"].tobytes()
        starts = ends - arrays["lengths"]
        ids = [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    for key in arrays:
        if key.startswith(_COLUMN) and key.count("/") == 2:
            _, kind, name = key.split("/")
            stored = arrays[key] if kind != "text" else Texts(arrays[f"{key}/bytes"], arrays[key])
            columns[name] = Column(kind, stored)  # type: ignore[arg-type]
    return RowFacts(arrays["labels"], ids, columns)
