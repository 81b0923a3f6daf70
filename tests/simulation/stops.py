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
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.simulation.scheduler import Actor, SimulatedKill, Simulation

_EVENTS = frozenset(
    {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir", "os.truncate", "os.link"}
)
_BUCKET = ("get", "put", "head", "list", "list_with_delimiter", "delete", "get_range", "get_ranges", "copy", "rename")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_active: tuple[Simulation, str] | None = None
_hooked = False


def stop_here(operation: str, path: Any, target: Any = "") -> bool:
    """Stop where an actor is about to do this to a path of the store; whether this is so."""
    if (here := _here()) is None:
        return False
    (simulation, actor), root = here, _root()
    name = _name(path)
    if name is None or not name.startswith(root):
        return False
    simulation.stop(actor, operation, name.removeprefix(root), (_name(target) or "").removeprefix(root))
    return True


def pause(_: int = 0) -> None:
    """For commands that report their progress while they fill a mapped file: such writes are no operations."""
    if (here := _here()) is not None:
        here[0].stop(here[1], "compute")


def _name(path: Any) -> str | None:
    return path if isinstance(path, str) else os.fsdecode(path) if isinstance(path, bytes | os.PathLike) else None


def _root() -> str:
    return "" if _active is None else _active[1]


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _active is None or event not in _EVENTS:
        return
    if event == "open":
        path, mode, flags = arguments
        is_write = isinstance(flags, int) and flags & _WRITING
        if stop_here("write-open" if is_write else "open", path) and isinstance(mode, str) and mode.startswith("w"):
            _truncate(path)
    elif event in ("os.rename", "os.link"):
        stop_here(event[3:], arguments[0], arguments[1])
    elif event in ("os.remove", "os.rmdir", "os.mkdir"):
        stop_here(event[3:], _below(arguments[-1], arguments[0]))
    else:
        stop_here(event[3:], arguments[0])


def _truncate(path: Any) -> None:
    """What Python opens for writing is empty for a moment, and its first bytes come when a buffer is full."""
    simulation, actor = _here() or (None, None)
    if simulation is None or actor is None:
        return
    with simulation.unseen(actor):
        if not Path(path).parent.is_dir():
            return  # opening it says so
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666))
    stop_here("fill", path)


def _below(folder: int, path: Any) -> Any:
    """A path that is given relative to an open folder, as shutil.rmtree does."""
    name = _name(path)
    if folder < 0 or name is None or name.startswith("/"):
        return path
    return f"{_open_path(folder)}/{name}"


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
    kept_files = sys.modules.get("actstore.search.index_files")
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
            here[0].stop(here[1], operation, _path_of(descriptor))
        return real(descriptor, *arguments)

    return stopped


def _path_of(descriptor: int) -> str:
    return _open_path(descriptor).removeprefix(_root())


def _open_path(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - asked at every stop
    except OSError:  # another system, which does not tell
        return ""


def _write(real: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
    @wraps(real)
    def stopped(descriptor: int, data: Any) -> int:
        if (here := _here()) is None:
            return real(descriptor, data)
        simulation, actor = here
        try:
            simulation.stop(actor, "write", _path_of(descriptor))
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
        simulation.stop(actor, "flock", _path_of(descriptor))
        while True:
            try:
                return real(descriptor, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                if operation & fcntl.LOCK_NB:
                    raise
            simulation.block(actor)
            simulation.stop(actor, "flock", _path_of(descriptor), is_retry=True)

    return stopped


def _compiled_write(real: Callable[..., Any]) -> Callable[..., Any]:
    """A library that opens, truncates and fills a file: two stops."""

    @wraps(real)
    def stopped(what: Any, path: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(path, str | os.PathLike) and _here() is not None:
            with Path(path).open("wb"):  # with two stops
                pass
        return real(what, path, *arguments, **options)

    return stopped


def _of_bucket(operation: str, real: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real)
    def stopped(store: Any, *arguments: Any, **options: Any) -> Any:
        if (here := _here()) is not None:
            paths = arguments[0] if arguments else options.get("prefix") or ""
            here[0].stop(here[1], operation, paths if isinstance(paths, str) else os.path.commonpath(paths))
        return real(store, *arguments, **options)

    return stopped
