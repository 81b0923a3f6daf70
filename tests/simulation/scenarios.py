"""Which commands meet on which store."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation import commands as c
from tests.simulation.commands import Command
from tests.simulation.learning import adapt, train


@dataclass(frozen=True)
class Scenario:
    state: str
    commands: tuple[Command, ...]
    in_bucket: bool = False

    @property
    def name(self) -> str:
        where = "bucket" if self.in_bucket else "disk"
        return f"{'-'.join(command.name for command in self.commands)}@{self.state}.{where}"


def _on_disk() -> list[Scenario]:
    healthy, indexed, twice = "healthy", "indexed", "damaged-twice"
    return [
        Scenario(healthy, (c.write("x", 12), c.write("y", 40))),
        Scenario(healthy, (c.append("x", 12), c.append("y", 40))),
        Scenario(healthy, (c.append("x", 40), c.rechunk())),
        Scenario("whole-chunks", (c.write("x", 40), c.rechunk(32))),
        Scenario("whole-chunks", (c.write("x", 40), c.rechunk(128))),
        Scenario("whole-chunks", (c.append("x", 40), c.rechunk(32))),
        Scenario(healthy, (c.write("x", 12), c.read())),
        Scenario(healthy, (c.append("x", 40), c.read(rows_first=False))),
        Scenario(healthy, (c.append("x", 12), c.verify())),
        Scenario(healthy, (c.append("x", 12), c.repair())),
        Scenario(healthy, (c.append("x", 12), c.search())),
        Scenario(healthy, (c.append("x", 12), c.means())),
        Scenario(healthy, (c.append("x", 12), c.audit())),
        Scenario(healthy, (c.append("x", 12), c.select())),
        Scenario(healthy, (c.append("x", 12), c.rechunk_out())),
        Scenario(healthy, (c.append("x", 12), c.copy())),
        Scenario(healthy, (c.append("x", 12), c.copy(by_name=False))),
        Scenario(healthy, (c.write("x", 12, classes=("fox",)), c.add_classes("gnu", "fox"))),
        Scenario(healthy, (c.add_classes("fox"), c.add_classes("gnu"))),
        Scenario(healthy, (c.add_classes("fox"), c.rechunk())),
        Scenario(healthy, (c.search(), c.search())),
        Scenario(healthy, (c.search(), c.rechunk())),
        Scenario(healthy, (c.means(), c.means())),
        Scenario(healthy, (c.means(), c.rechunk())),
        Scenario(healthy, (c.audit(), c.audit())),
        Scenario(healthy, (c.select(), c.select())),
        Scenario(healthy, (c.rechunk(), c.rechunk())),
        Scenario(healthy, (c.rechunk(), c.read())),
        Scenario(healthy, (c.rechunk(), c.verify())),
        Scenario("nothing", (c.import_new("train"), c.import_new("train"))),
        Scenario("nothing", (c.import_new("train"), c.import_new("val"))),
        Scenario("own-files", (c.rechunk(), c.read())),
        Scenario("own-files", (c.append("x", 12), c.repair())),
        Scenario("another", (c.replace(), c.read())),
        Scenario("another", (c.replace(), c.read(rows_first=False))),
        Scenario("damaged-labels", (c.append("x", 12), c.read())),
        Scenario("damaged-labels", (c.write("x", 12), c.repair())),
        Scenario("damaged-ids", (c.append("x", 12), c.read())),
        Scenario(twice, (c.repair(), c.append("x", 12, "val"))),
        Scenario(twice, (c.repair(), c.repair())),
        Scenario(twice, (c.repair(), c.read(split="val"))),
        Scenario(indexed, (c.index_bounded(), c.index_bounded())),
        Scenario(indexed, (c.index_bounded(), c.search())),
        Scenario(indexed, (c.index_bounded(), c.append("x", 40))),
        Scenario(indexed, (c.index_approximate(), c.index_approximate())),
        Scenario(healthy, (train(), train())),
        Scenario(healthy, (adapt("fox"), adapt("gnu"))),
        Scenario(healthy, (c.append("x", 12), c.append("y", 40), c.read())),
        Scenario(healthy, (c.write("x", 12), c.rechunk(), c.read())),
        Scenario(healthy, (c.append("x", 12), c.means(), c.search())),
        Scenario(twice, (c.repair(), c.append("x", 12, "val"), c.read(split="val"))),
    ]


def _in_bucket() -> list[Scenario]:
    healthy = "healthy"
    pairs: list[tuple[str, tuple[Command, ...]]] = [
        (healthy, (c.write("x", 12), c.write("y", 40))),
        (healthy, (c.append("x", 40), c.read())),
        (healthy, (c.append("x", 12), c.verify())),
        (healthy, (c.append("x", 12), c.search())),
        (healthy, (c.append("x", 12), c.means())),
        (healthy, (c.append("x", 12), c.repair())),
        (healthy, (c.append("x", 12), c.select())),
        (healthy, (c.add_classes("fox"), c.add_classes("gnu"))),
        (healthy, (c.means(), c.means())),
        ("nothing", (c.import_new("train"), c.import_new("train"))),
        (healthy, (c.append("x", 12), c.append("y", 40), c.read())),
    ]
    return [Scenario(state, commands, in_bucket=True) for state, commands in pairs]


_ALL = (*_on_disk(), *_in_bucket())
SCENARIOS = {scenario.name: scenario for scenario in _ALL}
assert len(SCENARIOS) == len(_ALL), "two scenarios have one name"
