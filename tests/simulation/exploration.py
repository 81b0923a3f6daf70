"""Which orders are tried: all with one switch, then kills, two switches and random turns by turns, each once.

Orders of a scenario are numbered, so that what was found after so many is found again. Processes of their own try them:
one that dies, say of reading a mapped file that another command has cut, is a finding, and its successor goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.simulation.scheduler import Schedule

HANG = "hang"

_SLICE = 4.0  # seconds that a scenario is tried before the next one's turn
_SPREAD = 0.6180339887  # of numbers that follow each other: far apart, so that few orders see all parts of a command


def planned(stops: Sequence[int]) -> Iterator[Schedule]:
    """Orders of commands that make so many stops alone, without end. The first are one after the other."""
    count = len(stops)
    pairs = [(one, two) for one in range(count) for two in range(count) if one != two]
    yield from (Schedule(tuple((actor, None) for actor in (*order,))) for order in _rotations(count))
    kinds = [_one_switch(stops, pairs), _kills(stops, pairs), _two_switches(stops, pairs), _random(stops)]
    kinds.insert(2, kinds[0])  # twice as often as others until all of them were tried
    while kinds:
        for kind in tuple(kinds):
            schedule = next(kind, None)
            if schedule is None:
                kinds.remove(kind)
            else:
                yield schedule


def _rotations(count: int) -> list[tuple[int, ...]]:
    forward = tuple(range(count))
    return [forward, forward[::-1]]


def _mixed(count: int) -> Iterator[int]:
    """Every number below count once, each far from the one before."""
    step = max(1, round(count * _SPREAD))
    while gcd(step, count) != 1:
        step += 1
    return (number * step % count for number in range(count))


def _one_switch(stops: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Iterator[Schedule]:
    for places in _in_turn([_mixed(stops[one]) for one, _ in pairs]):
        for (one, two), place in zip(pairs, places, strict=True):
            if place:
                yield Schedule(((one, place), (two, None)))


def _kills(stops: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Iterator[Schedule]:
    """One command stands still at any place, another begins and is killed at any stop, the first goes on."""
    for places in _in_turn([_mixed(stops[one] * stops[two]) for one, two in pairs]):
        for (one, two), place in zip(pairs, places, strict=True):
            if place:
                first, killed = divmod(place, stops[two])
                yield Schedule(((one, first), (two, None), (one, None)), crash=(two, killed + 1))


def _two_switches(stops: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Iterator[Schedule]:
    for places in _in_turn([_mixed(stops[one] * stops[two]) for one, two in pairs]):
        for (one, two), place in zip(pairs, places, strict=True):
            if place:
                first, second = divmod(place, stops[two])
                if first and second:
                    yield Schedule(((one, first), (two, second), (one, None)))


def _in_turn(kinds: list[Iterator[int]]) -> Iterator[list[int]]:
    """One number of each, 0 of those that have ended, until all have."""
    while True:
        numbers = [next(kind, -1) for kind in kinds]
        if max(numbers) < 0:
            return
        yield [max(0, number) for number in numbers]


def _random(stops: Sequence[int]) -> Iterator[Schedule]:
    seed = 0
    while True:
        seed += 1
        yield Schedule(seed=seed)
        actor = seed % len(stops)
        yield Schedule(seed=seed, crash=(actor, 1 + seed * 7919 % stops[actor]))


@dataclass
class Found:
    """A kind of finding: the first order that showed it, after how many, and how often it came again."""

    kind: str
    detail: str
    token: str
    after: int
    times: int = 1


@dataclass
class Tally:
    """What was tried of a scenario."""

    name: str
    orders: int = 0
    seconds: float = 0.0
    stops: tuple[int, ...] = ()
    found: dict[str, Found] = field(default_factory=dict)

    def note(self, kind: str, detail: str, token: str) -> None:
        if kind in self.found:
            self.found[kind].times += 1
        else:
            self.found[kind] = Found(kind, detail, token, self.orders)


@dataclass(frozen=True)
class _Task:
    name: str
    first: int  # number of the order to begin with
    seconds: float
    most: int


Report = tuple[str, int, tuple[int, ...], float, list[tuple[str, str]], str]


def _work(connection: Connection, current: Any) -> None:
    """In a process of its own: try orders of one scenario after the other. current: number of the order under way."""
    from tests.simulation.scenarios import SCENARIOS
    from tests.simulation.trial import laboratory

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with laboratory() as bench:
        stops: dict[str, tuple[int, ...]] = {}
        while (task := connection.recv()) is not None:
            scenario = SCENARIOS[task.name]
            if task.name not in stops:
                alone = Schedule(tuple((actor, None) for actor in range(len(scenario.commands))))
                stops[task.name] = bench.try_order(scenario, alone).stops
            end = time.monotonic() + task.seconds
            for number, schedule in enumerate(planned(stops[task.name])):
                if number < task.first:
                    continue
                if time.monotonic() > end or number >= task.first + task.most:
                    break
                current.value = number
                trial = bench.try_order(scenario, schedule)
                found = [(finding.kind, finding.detail) for finding in trial.findings]
                connection.send((trial.token, number, stops[task.name], trial.seconds, found))
                if any(finding.kind == HANG for finding in trial.findings):
                    os._exit(0)  # with threads that still wait
            connection.send(None)


class _Worker:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._current = context.Value("q", -1)
        self.process = context.Process(target=_work, args=(theirs, self._current), daemon=True)
        self.process.start()
        theirs.close()
        self.task: _Task | None = None

    def begin(self, task: _Task) -> None:
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
) -> list[Tally]:
    """Try orders of these scenarios, each for an equal share of the time.

    most: orders of each. until_found: leave a scenario when something was found. said: told of every new finding.
    """
    tallies = {name: Tally(name) for name in names}
    running = [_Worker() for _ in range(min(workers, len(names)))]
    end = time.monotonic() + seconds
    share = min(_SLICE, max(0.5, seconds * len(running) / len(names) / 2))
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
        return (most is None or tally.orders < most) and not (until_found and tally.found)

    def next_task() -> _Task | None:
        busy = {worker.task.name for worker in running if worker.task is not None}
        waiting = [tally for tally in tallies.values() if tally.name not in busy and is_open(tally)]
        left = end - time.monotonic()
        if not waiting or left <= 0:
            return None
        tally = min(waiting, key=lambda one: one.seconds)
        return _Task(tally.name, tally.orders, min(share, left), (most or 1 << 60) - tally.orders)

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
                    running[place] = worker = _Worker()
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
            token, number, tally.stops, spent, found = report
            tally.orders, tally.seconds = number + 1, tally.seconds + spent
            note(tally, token, found)


def _note_death(worker: _Worker, tally: Tally, note: Callable[[Tally, str, list[tuple[str, str]]], None]) -> None:
    """Which order it was on follows from its number."""
    if tally.orders == worker.current + 1:
        return  # it has told what it found, and could not go on
    code = worker.process.exitcode or 0
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    if worker.current < 0 or not tally.stops:
        raise RuntimeError(f"a process of the simulation ended ({how}) while it began with {tally.name}")
    schedule = next(schedule for number, schedule in enumerate(planned(tally.stops)) if number == worker.current)
    tally.orders = worker.current + 1
    note(tally, f"{tally.name}/{schedule}", [(f"the process died ({how})", "a command took its process with it")])


def table(tallies: Sequence[Tally]) -> str:
    """A line for each scenario, then what was found."""
    lines = [f"{'scenario':52} {'stops':>16} {'orders':>8} {'s':>7} {'orders/s':>8}  findings"]
    for tally in tallies:
        rate = tally.orders / tally.seconds if tally.seconds else 0.0
        stops = "+".join(map(str, tally.stops))
        found = sum(one.times for one in tally.found.values())
        lines.append(f"{tally.name:52} {stops:>16} {tally.orders:8,} {tally.seconds:7.1f} {rate:8.1f}  {found or ''}")
    orders, seconds = sum(tally.orders for tally in tallies), sum(tally.seconds for tally in tallies)
    lines.append(f"{'all':52} {'':>16} {orders:8,} {seconds:7.1f} {orders / max(seconds, 1e-9):8.1f}")
    for tally in tallies:
        for one in tally.found.values():
            lines.append(describe(tally, one))
    return "\n".join(lines)


def describe(tally: Tally, one: Found) -> str:
    return (
        f"{tally.name}: {one.kind} ({one.times} times; first after {one.after:,} orders): {one.detail}\n"
        f"    python -m tests.simulation --repeat '{one.token}'"
    )

