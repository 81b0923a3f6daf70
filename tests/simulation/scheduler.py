"""Whose turn it is. Every command is a thread, exactly one of which runs between two stops."""

from __future__ import annotations

import gc
import random
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PATIENCE = 20.0  # seconds without any stop, after which an order counts as hanging
NAMES = "abc"


class SimulatedKill(BaseException):
    """The process of a command is gone: no clause of it may clean up, as every further operation raises this again."""


class Step(NamedTuple):
    """An operation of a command, on which path, and to which it is renamed."""

    actor: str
    operation: str
    path: str = ""
    target: str = ""

    def __str__(self) -> str:
        return f"{self.actor} {self.operation} {self.path}{' -> ' if self.target else ''}{self.target}"


@dataclass(frozen=True)
class Schedule:
    """An order as a text: `a12.b5.a` gives a 12 stops, b 5, then a the rest, then the others theirs. `r7` draws turns
    from seed 7. `!b9` kills b at its ninth stop, within the operation where that can be cut in two."""

    turns: tuple[tuple[int, int | None], ...] = ()
    seed: int | None = None
    crash: tuple[int, int] | None = None

    def __str__(self) -> str:
        turns = ".".join(f"{NAMES[actor]}{'' if count is None else count}" for actor, count in self.turns)
        crash = "" if self.crash is None else f"!{NAMES[self.crash[0]]}{self.crash[1]}"
        return (turns if self.seed is None else f"r{self.seed}") + crash

    @classmethod
    def parse(cls, text: str) -> Schedule:
        matched = re.fullmatch(r"(?:r(\d+)|([abc]\d*(?:\.[abc]\d*)*))?(?:!([abc])(\d+))?", text)
        if matched is None:
            raise ValueError(f"{text!r} is no schedule; expected such as a12.b5.a, r7 or a3.b!b9")
        seed, turns, who, stop = matched.groups()
        parsed = [(NAMES.index(turn[0]), int(turn[1:]) if turn[1:] else None) for turn in (turns or "a").split(".")]
        crash = None if who is None else (NAMES.index(who), int(stop))
        return cls(() if seed else tuple(parsed), int(seed) if seed else None, crash)


@dataclass
class Actor:
    """A command, and what has become of it: a result, an error, or neither where it was killed."""

    number: int
    work: Callable[[], Any]
    stops: int = 0
    began: int = -1  # step of the simulation
    ended: int = -1
    result: Any = None
    error: BaseException | None = None
    killed: bool = False
    blocked: bool = False
    wake: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @property
    def name(self) -> str:
        return NAMES[self.number]

    @property
    def is_over(self) -> bool:
        return self.ended >= 0

    @property
    def succeeded(self) -> bool:
        return self.is_over and not self.killed and self.error is None


class Simulation:
    """Runs commands in the order of a schedule. `stop` is called before each operation on storage."""

    def __init__(self, schedule: Schedule, works: Sequence[Callable[[], Any]]) -> None:
        self.schedule = schedule
        self.actors = [Actor(number, work) for number, work in enumerate(works)]
        self.steps: list[Step] = []
        self.deadlocked = False
        self.hung = False
        self._threads: dict[int, Actor] = {}
        self._turns = list(schedule.turns)
        self._used = 0  # stops of the first of them
        self._random = None if schedule.seed is None else random.Random(schedule.seed)
        self._switching = 0.0 if self._random is None else self._random.choice((0.02, 0.1, 0.3))
        self._done = threading.Semaphore(0)

    def run(self) -> list[Actor]:
        threads = [threading.Thread(target=self._live, args=(actor,), daemon=True) for actor in self.actors]
        for thread in threads:
            thread.start()
        self._grant(self._choose(None))
        progress = -1
        while not self._done.acquire(timeout=PATIENCE):
            if len(self.steps) == progress:
                self.hung = True
                return self.actors
            progress = len(self.steps)
        for thread in threads:
            thread.join()
        return self.actors

    def actor_here(self) -> Actor | None:
        """Whose thread this is; None of a thread of the test or of another library."""
        return self._threads.get(threading.get_ident())

    def stop(self, actor: Actor, operation: str, path: str = "", target: str = "", is_retry: bool = False) -> None:
        """Before an operation: others may have their turn now. SimulatedKill where the process is gone."""
        if actor.killed or self.deadlocked:
            actor.killed = True
            raise SimulatedKill
        if not is_retry:
            for other in self.actors:
                other.blocked = False
        granted = self._choose(actor)
        if granted is not actor:
            self._grant(granted)
            actor.wake.acquire()
            if self.deadlocked:
                actor.killed = True
                raise SimulatedKill
        self._pass(actor, Step(actor.name, operation, path, target))

    def _pass(self, actor: Actor, step: Step) -> None:
        actor.stops += 1
        self.steps.append(step)
        if self.schedule.crash == (actor.number, actor.stops):
            actor.killed = True
            raise SimulatedKill

    @contextmanager
    def unseen(self, actor: Actor) -> Iterator[None]:
        """Within, the operations of this thread are nobody's."""
        del self._threads[threading.get_ident()]
        try:
            yield
        finally:
            self._threads[threading.get_ident()] = actor

    def block(self, actor: Actor) -> None:
        """It waits for a lock that another holds."""
        actor.blocked = True

    def _live(self, actor: Actor) -> None:
        self._threads[threading.get_ident()] = actor
        actor.wake.acquire()
        try:
            self._pass(actor, Step(actor.name, "begin"))
            actor.began = len(self.steps)
            actor.result = actor.work()
        except SimulatedKill:
            actor.killed = True
        except BaseException as error:  # noqa: BLE001 - the oracle judges it
            if not actor.killed:  # else it is what the command made of its own death
                actor.error = error
        if actor.killed:
            gc.collect()  # a process that is gone holds no locks
        del self._threads[threading.get_ident()]
        actor.ended = len(self.steps)
        for other in self.actors:
            other.blocked = False
        if all(one.is_over for one in self.actors):
            self._done.release()
        else:
            self._grant(self._choose(None))

    def _grant(self, actor: Actor) -> None:
        actor.wake.release()

    def _choose(self, running: Actor | None) -> Actor:
        alive = [actor for actor in self.actors if not actor.is_over]
        ready = [actor for actor in alive if not actor.blocked]
        if not ready:
            self.deadlocked = True
            return alive[0]
        return self._draw(running, ready) if self._random is not None else self._planned(running, ready)

    def _draw(self, running: Actor | None, ready: list[Actor]) -> Actor:
        assert self._random is not None
        others = [actor for actor in ready if actor is not running]
        stays = running is not None and running in ready
        if others and (not stays or self._random.random() < self._switching):
            return self._random.choice(others)
        assert running is not None
        return running

    def _planned(self, running: Actor | None, ready: list[Actor]) -> Actor:
        while self._turns:
            number, count = self._turns[0]
            actor = self.actors[number]
            if actor.is_over or (count is not None and self._used >= count):
                self._turns.pop(0)
                self._used = 0
                continue
            if actor.blocked:
                return ready[0]
            self._used += 1
            return actor
        return running if running is not None and running in ready else ready[0]
