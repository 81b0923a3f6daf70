"""Kills at random moments of import, append, build, train, index and a build into a bucket, and what they cost.

    python -m tests.bench.soak --kills 1000 [--seed 0] [--only build] [--interval 0.5]

A cycle is one command, killed one to four times (SIGKILL, and now and then SIGINT or SIGTERM) and then left to end.
Checked: committed rows are there after every kill; the finished store, index or model is that of an uninterrupted
run, byte by byte; and after a SIGKILL no more is done again than the work of `interval` seconds and the moment that a
write takes, after a signal nothing. The interval, 16 s for users, is shorter here, so that a minute sees many of them.

Every cycle is a line of bench-out/soak-SEED.jsonl; started again, the command goes on after the last one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from actstore.compute.process import Result
from actstore.storage.place import FolderPath, Place
from tests.bench.common import OUT, report
from tests.bench.soak_child import PRELOADED, Errand, run
from tests.bench.soak_scenarios import Scenario, make_data, scenarios
from tests.object_storage import running_server

SIGNALS = {signal.SIGKILL: 0.7, signal.SIGINT: 0.15, signal.SIGTERM: 0.15}
GRACE = 3.0  # seconds that a write may take on a busy machine
PATIENCE = 300  # seconds for a run to end
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOADED)


@dataclass
class Cycle:
    scenario: str
    kills: list[dict[str, Any]] = field(default_factory=list)
    late: int = 0  # signals that came after the end
    seconds: float = 0.0


def _signalled(child: BaseProcess, number: signal.Signals) -> bool:
    """Whether it was still there to be signalled."""
    assert child.pid is not None
    if not child.is_alive():
        return False
    try:
        os.kill(child.pid, number)
    except ProcessLookupError:
        return False
    return True


class Soak:
    def __init__(self, folder: Path, every: Mapping[str, Scenario], interval: float) -> None:
        self._folder, self._every, self._interval = folder, every, interval
        self._log = folder / "run.log"
        self._whole: dict[str, float] = {}  # seconds of an uninterrupted run

    def cycle(self, name: str, random: np.random.Generator) -> Cycle:
        scenario, begin = self._every[name], time.monotonic()
        if name not in self._whole:
            self._whole[name] = self._uninterrupted(name)
        target, done = scenario.target(self._folder, f"{name}-killed"), Cycle(name)
        self._clear(target)
        scenario.prepare(target)
        before: tuple[float, signal.Signals, list[tuple[str, float, int]]] | None = None
        for _ in range(int(random.integers(1, 5))):
            child = self._start(scenario, target)
            self._started(child)
            time.sleep(random.uniform(0, 1) ** 0.7 * self._whole[name])
            number = signal.Signals(random.choice(list(SIGNALS), p=list(SIGNALS.values())))
            at = time.monotonic()
            if _signalled(child, number):
                child.join(PATIENCE)
                self._settle(done, before)
                lines = self._lines()
                done.kills.append({"signal": number.name, "after": at - lines[0][1], "repeated": 0.0})
                if before is None or any(kind == "R" for kind, _, _ in lines):  # else the one before still counts
                    heard = child.exitcode != -signal.SIGTERM  # before there were rows it acts as SIGKILL does
                    before = (at, number if heard else signal.SIGKILL, lines)
                scenario.check(target)
            else:
                done.late += 1
                break
        if not done.late:
            child = self._start(scenario, target)
            child.join(PATIENCE)
            assert child.exitcode == 0, f"{name} ended with {child.exitcode}: {self._said()}"
            self._settle(done, before)
        assert scenario.is_same(target, scenario.target(self._folder, f"{name}-whole")), f"{name}: {target} differs"
        done.seconds = time.monotonic() - begin
        return done

    def _uninterrupted(self, name: str) -> float:
        scenario = self._every[name]
        target = scenario.target(self._folder, f"{name}-whole")
        self._clear(target)
        scenario.prepare(target)
        child = self._start(scenario, target)
        begin = self._started(child)
        child.join(PATIENCE)
        assert child.exitcode == 0, f"{name} ended with {child.exitcode}: {self._said()}"
        return time.monotonic() - begin

    def _start(self, scenario: Scenario, target: Place) -> BaseProcess:
        for file in (self._log, self._log.with_suffix(".said")):
            file.unlink(missing_ok=True)
        arguments = [one.format(target=target) for one in scenario.arguments]
        child = CONTEXT.Process(
            target=run, args=(Errand(scenario.tool, arguments, self._log, self._interval, scenario.pace),)
        )
        child.start()
        return child

    def _started(self, child: BaseProcess) -> float:
        patience = time.monotonic() + PATIENCE
        while not self._lines() and child.is_alive() and time.monotonic() < patience:
            time.sleep(0.002)
        assert self._lines(), f"the command did not start: {self._said()}"
        return self._lines()[0][1]

    def _settle(self, done: Cycle, before: tuple[float, signal.Signals, list[tuple[str, float, int]]] | None) -> None:
        """What the run just ended had to do again of what the killed one before it had done."""
        resumed = [position for kind, _, position in self._lines() if kind == "R"]
        if before is None or not resumed:
            return  # killed before it went on, or all was there: a later run tells, or the comparison at the end
        at, number, lines = before
        lost = [when for kind, when, position in lines if kind == "A" and position > resumed[0]]
        repeated = at - min(lost) if lost else 0.0
        done.kills[-1]["repeated"] = max(0.0, repeated)
        limit = self._interval + GRACE if number == signal.SIGKILL else 0.0
        assert repeated <= limit, f"{done.scenario}: {repeated:.2f} s were done again after {number.name}"

    def _lines(self) -> list[tuple[str, float, int]]:
        text = self._log.read_text() if self._log.exists() else ""
        parts = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return [(kind, float(when), int(done)) for kind, when, done in parts]

    def _said(self) -> str:
        return self._log.with_suffix(".said").read_text()

    def _clear(self, place: Place) -> None:
        if (folder := place.local_path) is not None:
            for each in (folder, folder.with_name(f"{folder.name}.search")):
                shutil.rmtree(each, ignore_errors=True)
        else:
            place.remove_below(place.contents())


def summary(cycles: list[dict[str, Any]]) -> list[Result]:
    results = []
    for name in dict.fromkeys(cycle["scenario"] for cycle in cycles):
        mine = [cycle for cycle in cycles if cycle["scenario"] == name]
        kills = [kill for cycle in mine for kill in cycle["kills"]]
        worst = max((kill["repeated"] for kill in kills), default=0.0)
        results += [
            Result(f"{name}: kills", len(kills), "times"),
            Result(f"{name}: finished, all identical", len(mine), "runs"),
            Result(f"{name}: most work done again after a kill", worst, "s"),
        ]
    kills = [kill for cycle in cycles for kill in cycle["kills"]]
    by_signal = {number.name: sum(kill["signal"] == number.name for kill in kills) for number in SIGNALS}
    return [*results, *(Result(f"all: {name}", count, "times") for name, count in by_signal.items())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--interval", type=float, default=0.5)
    parser.add_argument("--only", action="append", help="A scenario; may be given several times.")
    given = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    log = OUT / f"soak-{given.seed}.jsonl"
    cycles = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    folder = FolderPath(OUT / f"soak-{given.seed}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    make_data(folder)
    with running_server() as server:
        server.create_bucket("soak")
        every = scenarios(folder, "soak", given.interval)
        names, soak = given.only or list(every), Soak(folder, every, given.interval)
        while (kills := sum(len(cycle["kills"]) for cycle in cycles)) < given.kills:
            random = np.random.default_rng([given.seed, len(cycles)])
            done = soak.cycle(names[len(cycles) % len(names)], random)
            cycles.append({"cycle": len(cycles), **vars(done)})
            with log.open("a") as file:
                file.write(json.dumps(cycles[-1]) + "\n")
            print(f"{kills + len(done.kills)} kills: {done.scenario} {done.seconds:.1f} s", file=sys.stderr, flush=True)
    limit = f"{given.interval} s of work done again, and the {GRACE} s that a write may take"
    bars = ["no committed row lost, every finished run identical", f"after SIGKILL at most {limit}; after others none"]
    report("soak", summary(cycles), bars)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
