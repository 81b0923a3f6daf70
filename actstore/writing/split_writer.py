"""Rows into a split: blocks of any size in, whole chunks out, resumable at every moment.

A chunk's labels, ids and columns go to disk first, then its rows, then its line in the ledger; the split's own metadata
changes last, in one rename. After a crash the chunks that the ledger names count, and then the rows of the chunk
under way that were kept beside it: at most 20 s old ones are not, see chunk_writer.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actstore.compute.process import terminated_as_interrupted
from actstore.compute.tensors import convert_into, first_non_finite_row
from actstore.errors import ActstoreError, InvalidInputError
from actstore.layout.columns import Texts, encode_ids, facts_of, read_arrays
from actstore.layout.ledger import read_ledger
from actstore.layout.metadata import ACTIVATIONS
from actstore.spec import Json, SplitSpec, StoreSpec
from actstore.storage.locks import repeat
from actstore.storage.place import Place
from actstore.writing.chunk_writer import ChunkWriter, OpenRows, Pending
from actstore.writing.commit import commit, drop_uncommitted, find_position, lock_split, require_sound, sound_rows
from actstore.writing.row_checks import RowMetadata, join_facts, parse_columns, parse_labels, refused_row

SECONDS = 16.0  # a row waits at most so long until it is durable; with the time that its write takes, 20 s
_CHECK_ROWS = 1024


class SplitWriter:
    """Adds rows to one split. A `with` block commits at its end, unless an error ends it.

    `position` is the number of the row that comes next; after an interrupted build the source goes on from there. Rows
    are safe on disk 20 seconds after they were appended, and at once after `flush`, `close` or an interrupt.
    """

    def __init__(
        self,
        store: Place,
        spec: StoreSpec,
        name: str,
        source: Mapping[str, Json] | None = None,
        resume: bool = False,
        restart: bool = False,
        new: SplitSpec | None = None,
    ) -> None:
        self._split, self._source = store.with_cache(None) / name, source
        self._ledger, spec, self.committed = lock_split(store.with_cache(None), spec, name, new or SplitSpec())
        self._labels_of = {name: label for label, name in enumerate(spec.classes)}
        self._closed = False
        self._signals = ExitStack()
        self._waiting_since: float | None = None  # when the oldest row came that is not durable
        self._timer: threading.Thread | None = None
        self._stopped = threading.Event()
        self._failure: BaseException | None = None  # of the timer
        self._changing, self._writing = threading.Lock(), threading.Lock()  # the open chunk; a piece of it
        try:
            self._pending = Pending(self._split / ACTIVATIONS)
            self._spec = spec = spec.of_split(self.committed)
            require_sound(self._split, spec, self.committed)
            durable, kept = find_position(
                self._split, spec, self.committed, self._ledger, self._pending, source, resume, restart
            )
            self._start(durable)
            self._chunks = ChunkWriter(self._split, spec, self._ledger, self._pending)
            self._load_open_chunk(kept)
        except BaseException:
            self._ledger.close()
            raise

    @property
    def position(self) -> int:
        """Rows in the split so far, those in the open chunk included."""
        return self._chunk * self._spec.chunk_rows + self._filled

    def append(
        self,
        activations: ArrayLike,
        labels: ArrayLike | None = None,
        ids: Iterable[str] | None = None,
        columns: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a block of rows; it is taken as a whole or refused as a whole.

        Args:
            activations: (n, dim) finite numbers.
            labels: (n,) numbers or names of classes; -1 or no labels at all leave rows unlabelled.
            ids: (n,) texts, such as the paths of images.
            columns: for each column (n,) numbers, truth values, dates or texts. Rows that come without a column have
                no value of it (NaN, NaT or ""), and so have the rows before its first.

        Raises:
            InvalidInputError: a shape does not fit, a value is not finite or too large for the type, or a class is not
                known.
        """
        self._require_open()
        values = np.asarray(activations)
        if values.ndim != 2 or values.shape[1] != self._spec.dim:
            raise InvalidInputError(f"activations must have shape (n, {self._spec.dim}), got {values.shape}")
        if values.dtype.kind not in "fiu":
            raise InvalidInputError(f"activations must be real numbers, got type {values.dtype}")
        numbers = parse_labels(labels, len(values), self._labels_of, self.position)
        names = self._parse_ids(ids, len(values))
        parsed = parse_columns(columns, len(values), self._kinds, f"split {self._split.name!r}")
        facts = RowMetadata(numbers, names, parsed)
        if len(values) > self._spec.chunk_rows - self._filled:  # smaller ones are checked on their way
            scratch = np.empty((min(_CHECK_ROWS, len(values)), self._spec.dim), self._buffer.dtype)
            for start in range(0, len(values), _CHECK_ROWS):
                piece = values[start : start + _CHECK_ROWS]
                self._convert(scratch[: len(piece)], piece, self.position + start, start)
        done = 0
        while done < len(values):
            stop = min(len(values), done + self._spec.chunk_rows - self._filled)
            done += self._fill(values[done:stop], facts.part(done, stop), done)
        if self._filled:
            self._rows_came()

    def flush(self) -> None:
        """Make every row so far durable now; they wait to be committed, or resumed."""
        self._require_open()
        self._keep()
        self._chunks.drain()

    def last_id(self) -> str | None:
        """The id of the newest row: where a source that skips items has to go on."""
        self._chunks.drain()
        if ids := self._open_ids():
            return str(ids[-1])
        entries, _ = read_ledger(self._split / ACTIVATIONS)
        if self._pending.file(len(entries) - 1).exists():
            kept = self._pending.read(len(entries) - 1).ids
            return str(kept[-1]) if kept else None
        committed = self._committed_ids()
        return str(committed[-1]) if committed else None

    def ids(self) -> Iterator[str]:
        """Ids of all rows so far, in order."""
        self._chunks.drain()
        yield from self._committed_ids()
        for chunk in range(self.committed.rows // self._spec.chunk_rows, self._chunk):
            if self._pending.file(chunk).exists():
                yield from self._pending.read(chunk).ids or ()
        yield from self._open_ids()

    def _open_ids(self) -> Texts:
        """Of the open chunk, but for rows that are committed."""
        return Texts.joined([part.ids for part in self._facts if part.ids is not None])

    def commit(self, sources: Sequence[Mapping[str, Json]] | None = None, **facts: Json) -> SplitSpec:
        """Finish the split: write the last chunk, labels, ids and columns, and record them in the metadata.

        Args:
            sources: of all rows so far, each with its range; a split that was copied keeps those of its rows.
            **facts: what became known about the source only now, such as the files that were skipped.
        """
        self._require_open()
        self._stop_timer()
        if self._filled > self._durable:
            self._submit()
        self._chunks.drain()
        self._kept = self.position  # the ledger names all of them
        begun = {**(self._source or {"kind": "program"}), **facts, "rows": [self.committed.rows, self.position]}
        listed = (*self.committed.sources, begun) if sources is None else tuple(sources)
        committed = commit(self._split, self._spec, self.committed, self.position, self._pending, self._ledger, listed)
        self.close()
        return committed

    def close(self) -> None:
        """Let go of the split without committing; all rows so far wait to be resumed."""
        self._close(keep=True)

    def discard(self) -> None:
        """Let go of the split as it was before: rows that are not committed are dropped, and a new split is no more."""
        self._require_open()
        self._stop_timer()
        self._chunks.close()
        with self._ending():
            drop_uncommitted(self._split, self._spec, self.committed, self._ledger, self._pending)

    def __enter__(self) -> Self:
        self._signals.enter_context(terminated_as_interrupted())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._closed:
                self.commit()
        finally:
            with suppress(ActstoreError, OSError):  # what stopped the block is raised, not what follows from it
                # rows before a refused one are kept by their age alone: a source that is mended begins anew
                self._close(keep=not isinstance(error, InvalidInputError))

    def _close(self, keep: bool) -> None:
        if not self._closed:
            with self._ending():
                if keep:
                    self._keep()

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """The last thing that a writer does."""
        self._closed = True
        with ExitStack() as stack:
            for last in (self._signals.close, self._ledger.close, self._chunks.close, self._stop_timer):
                stack.callback(last)
            yield

    def _require_open(self) -> None:
        if self._closed:
            raise InvalidInputError(
                f"this writer of {self._split} is closed; open another with store.writer({self._split.name!r})"
            )
        if self._failure is not None:
            raise self._failure

    def _rows_came(self) -> None:
        """Some rows are not durable yet: a thread sees to them, also while a slow source makes its next block."""
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        if self._timer is None:
            self._timer = repeat(SECONDS / 4, self._keep_if_due, self._stopped, "actstore-keep")

    def _keep_if_due(self) -> bool:
        """Once the oldest row has waited for three quarters of SECONDS; whether there may be more to do."""
        if self._waiting_since is not None and time.monotonic() - self._waiting_since >= SECONDS * 3 / 4:
            try:
                self._keep()
            except BaseException as error:  # noqa: BLE001 - the next call of the writer raises it
                self._failure = error
                return False
        return self._chunks.is_sound

    def _stop_timer(self) -> None:
        """Returns when its thread does nothing any more."""
        self._stopped.set()
        if self._timer is not None and self._timer is not threading.current_thread():
            self._timer.join()

    def _keep(self) -> None:
        """Make the rows of the open chunk durable, those that are not. They follow nothing where a chunk before them
        could not be written."""
        if not self._chunks.is_sound:
            return
        with self._writing:
            with self._changing:
                began, end, start = time.monotonic(), self.position, self._chunk * self._spec.chunk_rows
                first = start + self._durable
                before = max(self.committed.rows, start)  # labels, ids and columns are those after it
                facts = join_facts(self._facts, self._kinds).part(first - before, end - before)
                values = self._buffer[self._durable : self._filled].copy()
                has_more = end > max(first, self._kept)
            if has_more:
                self._pending.keep(first, values, facts, self._ledger.require_own)
            with self._changing:
                self._kept = max(self._kept, end)
                self._waiting_since = None if self._kept >= self.position else began

    def _committed_ids(self) -> Texts:
        return cast(Texts, read_arrays(self._split, facts_of(self.committed)["ids"].arrays))

    def _start(self, durable: int) -> None:
        self._chunk, self._filled = divmod(durable, self._spec.chunk_rows)
        self._durable = self._filled  # rows of the open chunk that are in its file already
        self._kept = durable  # rows of the split that are durable, in a file or beside the ledger
        self._facts: list[RowMetadata] = []  # of the open chunk, but for rows that are committed
        self._kinds = {column.name: column.kind for column in self.committed.columns}
        self._has_ids: bool | None = None if durable == 0 else self.committed.has_ids
        if durable > self.committed.rows:
            last = self._pending.read((durable - 1) // self._spec.chunk_rows)
            self._has_ids = last.ids is not None
            self._know_kinds(last)
            if self._filled:
                self._facts = [last]

    def _load_open_chunk(self, kept: OpenRows | None) -> None:
        self._buffer = self._chunks.buffer()
        if self._filled:
            start = self._chunk * self._spec.chunk_rows
            self._buffer[: self._filled] = sound_rows(
                self._split / ACTIVATIONS, self._spec, self._chunk, start + self._filled
            )
        if kept is not None:
            self._fill(*kept, 0)
            self._kept = self.position

    def _know_kinds(self, facts: RowMetadata) -> None:
        """Every chunk on disk names all columns up to it, so the newest one is enough to know them again."""
        self._kinds |= {name: column.kind for name, column in facts.columns.items()}

    def _fill(self, values: NDArray[Any], facts: RowMetadata, offset: int) -> int:
        self._convert(self._buffer[self._filled : self._filled + len(values)], values, self.position, offset)
        with self._changing:
            self._has_ids = facts.ids is not None
            self._know_kinds(facts)
            self._facts.append(facts)
            self._filled += len(values)  # last: an interrupt may come before
        if self._filled == self._spec.chunk_rows:
            self._submit()
            buffer = self._chunks.buffer()
            with self._changing:
                self._chunk, self._filled, self._durable = self._chunk + 1, 0, 0
                self._buffer, self._facts = buffer, []
                self._waiting_since = None
        return len(values)

    def _convert(self, out: NDArray[Any], values: NDArray[Any], row: int, offset: int) -> None:
        """To the type of the store. row, offset: of the first value in the split and in the block, for what is said."""
        convert_into(out, values)
        bad = first_non_finite_row(out)
        if bad is not None:
            raise refused_row(values[bad], f"row {row + bad} (row {offset + bad} of this block)", self._spec.dtype)

    def _submit(self) -> None:
        self._chunks.submit(self._chunk, self._buffer, self._filled, join_facts(self._facts, self._kinds))

    def _parse_ids(self, ids: Iterable[str] | None, count: int) -> Texts | None:
        if count and self._has_ids is not None and (ids is not None) != self._has_ids:
            state = "has" if self._has_ids else "has no"
            raise InvalidInputError(f"split {self._split.name!r} {state} ids so far; give ids for all rows or for none")
        if ids is None:
            return None
        encoded = encode_ids(ids)
        if len(encoded) != count:
            raise InvalidInputError(f"expected {count} ids, one per row, got {len(encoded)}")
        return encoded
