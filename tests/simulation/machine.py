"""What is replaced while a simulation runs, so that a command does the same in every run, on one thread.

Pools run their work at once, on the thread that asks for it. Every command has a process number of its own. Time stands
still: what waits for seconds to pass does not happen, and costs are not measured. Small chunks of labels, ids and
columns let few rows span several of them.
"""

from __future__ import annotations

import gc
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from actstore.layout import columns, metadata
from actstore.search import plan
from actstore.storage import locks
from actstore.storage.locks import TokenedObject
from actstore.writing.split_writer import SplitWriter
from tests.simulation.scheduler import Simulation

LABELS, ID_BYTES = 48, 512  # of a chunk
INDEXED = 64  # rows of an index that are filled in at a time
_FIRST_PROCESS = 1_000_000
_COSTS = plan.Costs(byte=1e-10, product=1e-9, coordinate=1e-11, exact=1e-7, pair=1e-9, pair_byte=1e-11, pair_full=1e-7)


_checksums: dict[str, str] = {}
_seals: dict[str, bytes] = {}
_make_checksum, _make_seal = metadata.document_checksum, metadata.seal_document


def _checksum(document: Any) -> str:
    """Of texts that come again and again, computed once; it takes a tenth of the time otherwise."""
    text = json.dumps(document)
    if text not in _checksums:
        _checksums[text] = _make_checksum(document)
    return _checksums[text]


def _sealed(document: Mapping[str, Any]) -> bytes:
    text = json.dumps(document)
    if text not in _seals:
        _seals[text] = _make_seal(document)
    return _seals[text]


@contextmanager
def small_and_timeless() -> Iterator[None]:
    """While stores are made and used; a store that was made so can only be read so."""
    flat = metadata.FLAT_ARRAYS
    sizes = {name: (ID_BYTES if name == "path_bytes" else LABELS,) for name in flat}
    small = {name: replace(layout, chunks=sizes[name]) for name, layout in flat.items()}
    with ExitStack() as stack:
        stack.enter_context(patch.dict(flat, small))
        stack.enter_context(patch.object(columns, "_ROWS", LABELS))
        stack.enter_context(patch.object(columns, "_BYTES", ID_BYTES))
        stack.enter_context(patch.object(plan, "_BLOCK", INDEXED))
        stack.enter_context(patch.object(SplitWriter, "_rows_came", lambda writer: None))
        stack.enter_context(patch.object(TokenedObject, "_begin_beating", lambda log: None))
        stack.enter_context(patch.object(plan, "measure_costs", lambda table: _COSTS))
        stack.enter_context(patch.object(metadata, "document_checksum", _checksum))
        stack.enter_context(patch.object(metadata, "seal_document", _sealed))
        yield


@contextmanager
def unshared_locks() -> Iterator[None]:
    """Before Python 3.12 a cached property has one lock for all objects of its class, which processes do not share: a
    command that stands still while it computes one would keep all others from it."""
    shared = [
        (thing, thing.lock) for thing in gc.get_objects() if type(thing) is cached_property if hasattr(thing, "lock")
    ]
    for thing, _ in shared:
        thing.lock = nullcontext()
    try:
        yield
    finally:
        for thing, lock in shared:
            thing.lock = lock


@contextmanager
def one_thread_each(simulation: Simulation) -> Iterator[None]:
    """Commands as processes of their own, each of one thread."""
    process = os.getpid()

    def own_process() -> int:
        actor = simulation.actor_here()
        return process if actor is None else _FIRST_PROCESS + actor.number

    numbers = count(1)
    with ExitStack() as stack:
        stack.enter_context(patch.object(os, "getpid", own_process))
        # unlike any other, and the same in every run; a name shows the first digits
        numbered = SimpleNamespace(uuid4=lambda: uuid.UUID(int=next(numbers) << 96))
        stack.enter_context(patch.object(locks, "uuid", numbered))
        stack.enter_context(patch.object(ThreadPoolExecutor, "submit", _at_once(simulation, ThreadPoolExecutor.submit)))
        yield


def _at_once(simulation: Simulation, real: Callable[..., Any]) -> Callable[..., Any]:
    def submit(pool: ThreadPoolExecutor, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
        if simulation.actor_here() is None and threading.current_thread() is not threading.main_thread():
            return real(pool, work, *arguments, **options)
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, **options))
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            future.set_exception(error)
        return future

    return submit
