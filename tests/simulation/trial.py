"""One order of one scenario: a fresh copy of the store, the commands, the oracle."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from unittest.mock import patch

import obstore  # noqa: F401 - its functions are stops
import torch

from tests.simulation.case import Finding
from tests.simulation.conflicts import Places, find_places
from tests.simulation.exploration import ROOM, folder_prefix
from tests.simulation.machine import one_thread_each, small_and_timeless, unshared_locks
from tests.simulation.oracle import Oracle, Verdicts
from tests.simulation.scenarios import SCENARIOS, Scenario
from tests.simulation.scheduler import Schedule, Simulation, Step
from tests.simulation.states import States, World
from tests.simulation.stops import stopping


@dataclass(frozen=True)
class Trial:
    """What was found in one order. stops: of each command; steps: whose operations came one after the other."""

    token: str
    findings: tuple[Finding, ...]
    stops: tuple[int, ...]
    steps: tuple[Step, ...]
    seconds: float

    @property
    def trace(self) -> bytes:
        """The same for orders in which the same operations came one after the other."""
        text = "\n".join([*map(str, self.steps), self.token.partition("!")[2]])
        return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()

    @property
    def kinds(self) -> list[str]:
        return [finding.kind for finding in self.findings]


class Laboratory:
    """Where orders are tried, in a folder in memory; one for each process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        sources = folder / "sources"
        sources.mkdir()
        self._states = States(folder, sources)
        self.verdicts: Verdicts = {}
        self._worlds = {bucket: World(folder / "run", sources, bucket) for bucket in (False, True)}

    def try_order(self, scenario: Scenario, schedule: Schedule) -> Trial:
        began = time.perf_counter()
        state, world = self._states.get(scenario.state, scenario.in_bucket), self._worlds[scenario.in_bucket]
        world.fill(state)
        simulation = Simulation(schedule, [partial(command.run, world) for command in scenario.commands])
        cache = patch.dict(os.environ, XDG_CACHE_HOME=str(world.folder / "cache"))
        with cache, small_and_timeless(), one_thread_each(simulation):
            with stopping(simulation, f"{world.folder}/"):
                actors = simulation.run()
            stops = tuple(actor.stops for actor in actors)
            for actor in actors:
                if actor.error is not None:
                    actor.error.__traceback__ = None  # whose frames hold files and locks
                    actor.error.__context__ = actor.error.__cause__ = None
            findings = tuple(Oracle(scenario, state, world, simulation).judge(self.verdicts))
        world.clear()
        token = f"{scenario.name}/{schedule}"
        return Trial(token, findings, stops, tuple(simulation.steps), time.perf_counter() - began)

    def settle(self) -> None:
        """What was imported and made so far need not be looked at after every kill."""
        gc.collect()
        gc.freeze()

    def places(self, scenario: Scenario) -> Places:
        """Where a switch or a kill can matter, by what the commands do one after the other."""
        actors = range(len(scenario.commands))
        # a turn of a command that has ended is passed over
        orders = [Schedule(tuple((actor, None) for actor in (first, *actors))) for first in actors]
        self.try_order(scenario, orders[0])  # libraries set themselves up when they are first used
        steps = [self.try_order(scenario, order).steps for order in orders]
        return find_places(steps, [not command.is_foreign for command in scenario.commands])


@contextmanager
def laboratory() -> Iterator[Laboratory]:
    """With settings under which small work is quick and the same every time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix=folder_prefix(os.getpid()), dir=ROOM))
    with unshared_locks():
        gc.disable()
        try:
            yield Laboratory(folder)
        finally:
            gc.enable()
            gc.unfreeze()
            torch.set_num_threads(threads)
            shutil.rmtree(folder, ignore_errors=True)


def parse_token(token: str) -> tuple[Scenario, Schedule]:
    name, _, schedule = token.rpartition("/")
    if name not in SCENARIOS:
        raise ValueError(f"no scenario is called {name!r}; there are {', '.join(SCENARIOS)}")
    return SCENARIOS[name], Schedule.parse(schedule)
