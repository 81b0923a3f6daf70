"""Labels and ids of chunks that are on disk but not yet committed, and where they come from.

One small file per chunk beside the ledger; when a build commits, they are merged into the split's
arrays and removed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actstore.errors import IncompleteError
from actstore.objects import Guard, ObjectPath
from actstore.places import Place, Storing, begin_write, read_file, remove_tree, write_file
from actstore.spec import Json


@dataclass(frozen=True)
class LabelsAndIds:
    """Labels (n,) and, where the split has them, encoded ids of the uncommitted rows of a chunk."""

    labels: NDArray[np.int32]
    ids: list[bytes] | None


class Pending:
    def __init__(self, array: Place) -> None:
        self.path = array / "pending"

    def exists(self) -> bool:
        return (self.path / "source.json").exists()

    def begin(self, source: Mapping[str, Json] | None) -> None:
        place, text = self.path / "source.json", json.dumps(source, sort_keys=True).encode()
        if isinstance(place, ObjectPath):
            place.create(text)  # of two builds that begin at once, one
        else:
            write_file(place, text)

    def require_source(self, source: Mapping[str, Json] | None) -> None:
        """A resumed build must bring what the interrupted one began with: rows are never mixed."""
        begun = json.loads((self.path / "source.json").read_bytes())
        if begun != json.loads(json.dumps(source)):
            raise IncompleteError(
                f"{self.path.parent.parent} has an unfinished build from {describe(begun)}, this one is from "
                f"{describe(source)}{_difference(begun, source)}; repeat the first, or discard it with --restart"
            )

    def was_of(self, source: Mapping[str, Json]) -> bool:
        """Whether these are the remains of the build that this committed source describes."""
        begun = json.loads((self.path / "source.json").read_bytes()) if self.exists() else None
        return isinstance(begun, dict) and all(source.get(key) == value for key, value in begun.items())

    def begin_chunk(self, chunk: int, rows: LabelsAndIds, guard: Guard) -> Storing:
        """Labels and ids of a chunk, to be finished before its line in the ledger."""
        arrays = {"labels": rows.labels}
        if rows.ids is not None:
            arrays["lengths"] = np.array([len(name) for name in rows.ids], np.int32)
            arrays["bytes"] = np.frombuffer(b"".join(rows.ids), np.uint8)
        stream = io.BytesIO()
        np.savez(stream, **arrays)  # type: ignore[arg-type]
        return begin_write(self._file(chunk), stream.getbuffer(), guard=guard)

    def read(self, chunk: int) -> LabelsAndIds:
        with np.load(io.BytesIO(read_file(self._file(chunk)).data), allow_pickle=False) as arrays:
            labels = arrays["labels"]
            if "lengths" not in arrays:
                return LabelsAndIds(labels, None)
            ends = np.cumsum(arrays["lengths"])
            data = arrays["bytes"].tobytes()
            starts = ends - arrays["lengths"]
            return LabelsAndIds(labels, [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)])

    def has(self, chunk: int) -> bool:
        return self._file(chunk).exists()

    def remove(self) -> None:
        remove_tree(self.path)

    def _file(self, chunk: int) -> Place:
        return self.path / f"rows-{chunk}.npz"


def describe(source: Mapping[str, Json] | None) -> str:
    if not source:
        return "a program"
    return str(source.get("path") or source.get("kind") or "another source")


def _difference(begun: Mapping[str, Json] | None, source: Mapping[str, Json] | None) -> str:
    begun, source = begun or {}, source or {}
    changed = sorted(key for key in {*begun, *source} if begun.get(key) != source.get(key))
    return f" (they differ in {', '.join(changed)})" if changed else ""
