"""One order of a scenario that is judged: what was there, what each command adds, and what has become of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from actstore.errors import ActstoreError, DamagedError
from tests.simulation.rows import CLASSES, Possible, Rows
from tests.simulation.scenarios import Scenario
from tests.simulation.scheduler import Simulation
from tests.simulation.states import State, World

MOST = 300  # characters of what is said


@dataclass(frozen=True)
class Finding:
    """A rule that was broken: `kind` is the same for equal ones, `detail` says what happened."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail[:MOST]}"


class Case:
    def __init__(self, scenario: Scenario, state: State, world: World, simulation: Simulation) -> None:
        self.scenario, self.state, self.world, self.simulation = scenario, state, world, simulation
        self.pairs = list(zip(scenario.commands, simulation.actors, strict=True))
        self.has_crash = any(actor.killed for actor in simulation.actors)

    def possible(self, split: str) -> Possible:
        bases = [self.state.splits[split]] if split in self.state.splits else []
        if any(command.replaces and actor.stops for command, actor in self.pairs):
            bases.append(self.state.others[split])
        if not bases:
            bases = [command.adds[split].pick([]) for command in self.scenario.commands if split in command.adds][:1]
        return Possible(tuple(bases), self._blocks(split))

    def _blocks(self, split: str) -> dict[str, Rows]:
        blocks = {}
        for command, actor in self.pairs:
            if split in command.adds:
                blocks[actor.name] = command.adds[split]
        return blocks

    def refusal(self, who: str, error: BaseException) -> Iterator[Finding]:
        said = f"{type(error).__name__}: {error}"
        if not isinstance(error, ActstoreError):
            yield Finding(f"bare {type(error).__name__} of {who}", said)
        elif "\n" in str(error) or not str(error):
            yield Finding(f"no sentence of {who}", said)
        elif isinstance(error, DamagedError) and not self.state.is_damaged and "replaced" not in str(error):
            yield Finding(f"called damaged by {who}", said)


def wrong_statistics(found: Any, state: Rows) -> str | None:
    values, names = state.values.astype(np.float64), np.array(state.classes)
    for label, name in enumerate(CLASSES):
        own = values[names == name]
        if found.count[label] != len(own):
            return f"{found.count[label]} rows of {name}, expected {len(own)}"
        if len(own) and not np.allclose(found.mean[label], own.mean(0), atol=1e-3):
            return f"the mean of {name} is another"
        if len(own) and not np.allclose(found.variance[label], own.var(0), atol=1e-2, rtol=1e-2):
            return f"the variance of {name} is another"
    return None
