"""Where threads stop: operations on files below one folder, and all on objects of a bucket.

Python announces most operations on files to audit hooks, also those of other libraries; the few others that matter are
wrapped while a simulation runs. Writes by compiled libraries are taken apart into a truncation and a write.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from tests.simulation.scheduler import Actor, SimulatedKill, Simulation

_EVENTS = frozenset(
    {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir", "os.truncate", "os.link"}
)
_BUCKET = ("get", "put", "head", "list", "list_with_delimiter", "delete", "get_range", "get_ranges", "copy", "rename")
_active: tuple[Simulation, str] | None = None
_hooked = False


def stop_here(operation: str, path: Any) -> Simulation | None:
    """Stop where an actor is about to do this to a path of the store; returns the simulation if so."""
    if _active is None:
        return None
    simulation, root = _active
    actor = simulation.actor_here()
    if actor is None:
        return None
    name = path if isinstance(path, str) else os.fsdecode(path) if isinstance(path, bytes | os.PathLike) else None
    if name is None or (name.startswith("/") and not name.startswith(root)):
        return None
    simulation.stop(f"{operation} {name.removeprefix(root)}", actor)
    return simulation


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _active is not None and event in _EVENTS:
        stop_here(event.removeprefix("os."), arguments[0])


@contextmanager
def stopping(simulation: Simulation, root: str) -> Iterator[None]:
    """root: the folder whose files are simulated."""
    global _active, _hooked
    if not _hooked:
        sys.addaudithook(_hook)  # for good, as Python has it: it does nothing while no simulation runs
        _hooked = True
    with ExitStack() as stack:
        for module, name, wrapper in _wrappers():
            stack.enter_context(patch.object(module, name, wrapper))
        _active = (simulation, root)
        try:
            yield
        finally:
            _active = None


def _wrappers() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    yield os, "stat", _by_path("stat", os.stat)
    yield os, "write", _write(os.write)
    yield os, "ftruncate", _by_descriptor("ftruncate", os.ftruncate)
    if hasattr(os, "posix_fallocate"):
        yield os, "posix_fallocate", _by_descriptor("fallocate", os.posix_fallocate)
    yield fcntl, "flock", _flock(fcntl.flock)
    yield from _of_other_libraries()
    if (obstore := sys.modules.get("obstore")) is not None:
        for name in _BUCKET:
            yield obstore, name, _of_bucket(name, getattr(obstore, name))


def _of_other_libraries() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Files that compiled libraries write and map."""
    kept_files = sys.modules.get("actstore.search.kept_files")
    if hasattr(kept_files, "save_file"):
        yield kept_files, "save_file", _compiled_write(kept_files.save_file)
    if hasattr(kept_files, "safe_open"):
        yield kept_files, "safe_open", _by_path("map", kept_files.safe_open)
    if (faiss := sys.modules.get("faiss")) is not None:
        yield faiss, "write_index", _compiled_write(faiss.write_index)
        yield faiss, "read_index", _by_path("read", faiss.read_index)


def _here() -> tuple[Simulation, Actor] | None:
    if _active is None:
        return None
    actor = _active[0].actor_here()
    return None if actor is None else (_active[0], actor)


def _by_path(operation: str, real: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real)
    def stopped(path: Any, *arguments: Any, **options: Any) -> Any:
        stop_here(operation, path)
        return real(path, *arguments, **options)

    return stopped


def _by_descriptor(operation: str, real: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real)
    def stopped(descriptor: int, *arguments: Any) -> Any:
        if (here := _here()) is not None:
            here[0].stop(operation, here[1])
        return real(descriptor, *arguments)

    return stopped


def _write(real: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
    @wraps(real)
    def stopped(descriptor: int, data: Any) -> int:
        if (here := _here()) is None:
            return real(descriptor, data)
        simulation, actor = here
        try:
            simulation.stop("write", actor)
        except SimulatedKill:
            if simulation.schedule.crash == (actor.number, actor.stops):
                real(descriptor, memoryview(data)[: len(data) // 2])  # a write cut in two
            raise
        return real(descriptor, data)

    return stopped


def _flock(real: Callable[[int, int], None]) -> Callable[[int, int], None]:
    @wraps(real)
    def stopped(descriptor: int, operation: int) -> None:
        if (here := _here()) is None or operation & fcntl.LOCK_UN:
            return real(descriptor, operation)
        simulation, actor = here
        simulation.stop("flock", actor)
        while True:
            try:
                return real(descriptor, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                if operation & fcntl.LOCK_NB:
                    raise
            simulation.block(actor)
            simulation.stop("flock again", actor, is_retry=True)

    return stopped


def _compiled_write(real: Callable[..., Any]) -> Callable[..., Any]:
    """A library that opens, truncates and fills a file: two stops."""

    @wraps(real)
    def stopped(what: Any, path: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(path, str | os.PathLike) and _here() is not None:
            with open(path, "wb"):  # which is a stop
                pass
            stop_here("fill", path)
        return real(what, path, *arguments, **options)

    return stopped


def _of_bucket(operation: str, real: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real)
    def stopped(store: Any, *arguments: Any, **options: Any) -> Any:
        if (here := _here()) is not None:
            path = arguments[0] if arguments else options.get("prefix", "")
            here[0].stop(f"{operation} {path if isinstance(path, str) else 'several'}", here[1])
        return real(store, *arguments, **options)

    return stopped
