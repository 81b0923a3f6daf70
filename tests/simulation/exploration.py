"""Which orders are tried: all with one switch, then kills, two switches and random turns by turns, each once.

Orders of a scenario are numbered, so that what was found after so many is found again. Processes of their own try them:
one that dies, say of reading a mapped file that another command has cut, is a finding, and its successor goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.simulation.conflicts import Places
from tests.simulation.scheduler import Schedule
from tests.simulation.tally import Found, Tally

HANG = "hang"
ROOM = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())  # in memory, where there is some


def folder_prefix(process: int) -> str:
    """What the folder of a process begins with."""
    return f"simulation-{process}-"


_SLICE = 4.0  # seconds that a scenario is tried before the next one's turn
_IDLE = 500  # orders without a new one, after which a scenario is left
_SPREAD = 0.6180339887  # of numbers that follow each other: far apart, so that few orders see all parts of a command


def planned(places: Places) -> Iterator[Schedule]:
    """Orders without end; the first are one command after the other."""
    count = len(places.stops)
    pairs = [(one, two) for one in range(count) for two in range(count) if one != two]
    forward = tuple((actor, None) for actor in range(count))
    yield Schedule(forward)
    yield Schedule(forward[::-1])
    kinds = [_one_switch(places, pairs), _kills(places, pairs), _two_switches(places, pairs), _random(places)]
    kinds.insert(2, kinds[0])  # twice as often as others until all of them were tried
    while kinds:
        for kind in tuple(kinds):
            schedule = next(kind, None)
            if schedule is None:
                kinds.remove(kind)
            else:
                yield schedule


def _mixed(count: int) -> Iterator[int]:
    """Every number below count once, each far from the one before."""
    step = max(1, round(count * _SPREAD))
    while gcd(step, max(1, count)) != 1:
        step += 1
    return (number * step % count for number in range(count))


def _one_switch(places: Places, pairs: Sequence[tuple[int, int]]) -> Iterator[Schedule]:
    for (one, two), number in _in_turn({pair: len(places.switches[pair[0]]) for pair in pairs}):
        yield Schedule(((one, places.switches[one][number]), (two, None)))


def _kills(places: Places, pairs: Sequence[tuple[int, int]]) -> Iterator[Schedule]:
    """One command stands still anywhere, also before it begins; another is killed anywhere, and the first goes on."""
    sizes = {(one, two): (len(places.switches[one]) + 1) * len(places.kills[two]) for one, two in pairs}
    for (one, two), number in _in_turn(sizes):
        first, killed = divmod(number, len(places.kills[two]))
        still = (0, *places.switches[one])[first]
        turns: tuple[tuple[int, int | None], ...] = ((one, still), (two, None), (one, None))
        yield Schedule(turns if still else turns[1:], crash=(two, places.kills[two][killed]))


def _two_switches(places: Places, pairs: Sequence[tuple[int, int]]) -> Iterator[Schedule]:
    sizes = {(one, two): len(places.switches[one]) * len(places.switches[two]) for one, two in pairs}
    for (one, two), number in _in_turn(sizes):
        first, second = divmod(number, len(places.switches[two]))
        yield Schedule(((one, places.switches[one][first]), (two, places.switches[two][second]), (one, None)))


def _in_turn(sizes: dict[tuple[int, int], int]) -> Iterator[tuple[tuple[int, int], int]]:
    """Every number below each size once, one of each in turn until all have ended."""
    left = {pair: _mixed(size) for pair, size in sizes.items() if size}
    while left:
        for pair, numbers in tuple(left.items()):
            number = next(numbers, None)
            if number is None:
                del left[pair]
            else:
                yield pair, number


def _random(places: Places) -> Iterator[Schedule]:
    killable = [actor for actor, stops in enumerate(places.kills) if stops]
    seed = 0
    while True:
        seed += 1
        yield Schedule(seed=seed)
        if killable:
            actor = killable[seed % len(killable)]
            yield Schedule(seed=seed, crash=(actor, places.kills[actor][seed * 7919 % len(places.kills[actor])]))


@dataclass(frozen=True)
class _Task:
    name: str
    first: int  # number of the order to begin with
    seconds: float
    most: int
    places: Places | None  # where known


def _work(connection: Connection, current: Any) -> None:
    """In a process of its own: try orders of one scenario after the other. current: number of the order under way."""
    from tests.simulation.scenarios import SCENARIOS
    from tests.simulation.trial import laboratory

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with laboratory() as bench:
        connection.send("ready")
        while (task := connection.recv()) is not None:
            scenario = SCENARIOS[task.name]
            places = task.places or bench.places(scenario)
            bench.settle()
            end = time.monotonic() + task.seconds
            for number, schedule in enumerate(planned(places)):
                if number < task.first:
                    continue
                if time.monotonic() > end or number >= task.first + task.most:
                    break
                current.value = number
                trial = bench.try_order(scenario, schedule)
                found = [(finding.kind, finding.detail) for finding in trial.findings]
                connection.send((trial.token, number, places, trial.seconds, trial.trace, found))
                if any(finding.kind == HANG for finding in trial.findings):
                    os._exit(0)  # with threads that still wait
            connection.send(None)


Work = Callable[[Any, Any], None]


class _Worker:
    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._current = context.Value("q", -1)
        self.process = context.Process(target=work, args=(theirs, self._current), daemon=True)
        self.process.start()
        theirs.close()
        self.task: _Task | None = None
        self.work = work
        self._is_ready = False

    def await_ready(self) -> None:
        """Libraries are loaded."""
        if not self._is_ready:
            self.connection.recv()
            self._is_ready = True

    def begin(self, task: _Task) -> None:
        self.await_ready()
        self.task = task
        self._current.value = -1
        self.connection.send(task)

    @property
    def current(self) -> int:
        return int(self._current.value)

    def end(self) -> None:
        if self.process.is_alive():
            self.connection.send(None)
        self.process.join(20)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def explore(
    names: Sequence[str],
    seconds: float,
    workers: int = 2,
    most: int | None = None,
    until_found: bool = False,
    said: Callable[[Tally, Found], None] | None = None,
    work: Work = _work,
) -> list[Tally]:
    """Try orders of these scenarios, each for an equal share of the time.

    most: orders of each. until_found: leave a scenario when something was found. said: told of every new finding.
    work: what a process does, see `_work`.
    """
    tallies = {name: Tally(name) for name in names}
    running = [_Worker(work) for _ in range(min(workers, len(names)))]
    for worker in running:
        worker.await_ready()
    end = time.monotonic() + seconds
    share = min(_SLICE, max(0.2, seconds * len(running) / len(names) / 4))
    try:
        _explore(tallies, running, end, share, most, until_found, said)
    finally:
        for worker in running:
            worker.end()
    return list(tallies.values())


def _explore(
    tallies: dict[str, Tally], running: list[_Worker], end: float, share: float, most: int | None, until_found: bool,
    said: Callable[[Tally, Found], None] | None,
) -> None:  # fmt: skip
    def is_open(tally: Tally) -> bool:
        is_over = tally.idle >= _IDLE or (until_found and bool(tally.found))
        return not is_over and (most is None or tally.orders < most)

    def next_task() -> _Task | None:
        busy = {worker.task.name for worker in running if worker.task is not None}
        waiting = [tally for tally in tallies.values() if tally.name not in busy and is_open(tally)]
        left = end - time.monotonic()
        if not waiting or left <= 0:
            return None
        tally = min(waiting, key=lambda one: one.seconds)
        return _Task(tally.name, tally.orders, min(share, left), (most or 1 << 60) - tally.orders, tally.places)

    def note(tally: Tally, token: str, found: list[tuple[str, str]]) -> None:
        for kind, detail in found:
            is_new = kind not in tally.found
            tally.note(kind, detail, token)
            if is_new and said is not None:
                said(tally, tally.found[kind])

    while True:
        for place, worker in enumerate(running):
            if worker.task is None and (task := next_task()) is not None:
                if not worker.process.is_alive():
                    running[place] = worker = _Worker(worker.work)
                worker.begin(task)
        busy = [worker for worker in running if worker.task is not None]
        if not busy:
            return
        ready = wait([worker.connection for worker in busy], timeout=1)
        for worker in busy:
            if worker.connection not in ready or worker.task is None:
                continue
            tally = tallies[worker.task.name]
            try:
                report = worker.connection.recv()
            except (EOFError, OSError):
                worker.process.join()
                _note_death(worker, tally, note)
                worker.task = None
                continue
            if report is None:
                worker.task = None
                continue
            token, number, tally.places, spent, trace, found = report
            tally.add_trace(trace)
            tally.orders, tally.seconds = number + 1, tally.seconds + spent
            note(tally, token, found)


def _note_death(worker: _Worker, tally: Tally, note: Callable[[Tally, str, list[tuple[str, str]]], None]) -> None:
    """Which order it was on follows from its number."""
    for folder in ROOM.glob(f"{folder_prefix(worker.process.pid or 0)}*"):
        shutil.rmtree(folder, ignore_errors=True)
    if tally.orders == worker.current + 1:
        return  # it has told what it found, and could not go on
    code = worker.process.exitcode or 0
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    if worker.current < 0 or tally.places is None:
        raise RuntimeError(f"a process of the simulation ended ({how}) while it began with {tally.name}")
    schedule = next(schedule for number, schedule in enumerate(planned(tally.places)) if number == worker.current)
    tally.orders = worker.current + 1
    note(tally, f"{tally.name}/{schedule}", [(f"the process died ({how})", "a command took its process with it")])
