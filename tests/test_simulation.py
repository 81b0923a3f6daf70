"""The simulation finds what is broken on purpose, repeats itself, and finds nothing in the commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actstore.storage import atomic_file
from actstore.storage.atomic_file import FileLock
from tests.simulation.conflicts import Places, find_places
from tests.simulation.exploration import explore, planned
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.scheduler import Schedule, Simulation, Step
from tests.simulation.stops import stopping
from tests.simulation.tally import table
from tests.simulation.trial import Laboratory, laboratory, parse_token

SECONDS = 15.0  # of two processes, and some for their start and end: twenty seconds


def run(schedule: str, folder: Path, *works: Callable[[], Any]) -> Simulation:
    simulation = Simulation(Schedule.parse(schedule), works)
    with stopping(simulation, f"{folder}/"):
        simulation.run()
    return simulation


class Counter:
    """A file with a number that commands raise by one: without a lock, two at once may raise it once only."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "number"
        self.file.write_text("0")

    @property
    def value(self) -> int:
        return int(self.file.read_text())

    def add(self) -> None:
        number = self.value
        self.file.write_text(str(number + 1))

    def add_locked(self) -> None:
        with FileLock(self.folder / "lock"):
            self.add()


def test_an_update_without_a_lock_is_lost_in_some_order(tmp_path: Path) -> None:
    lost = []
    for stops in range(1, 5):
        counter = Counter(tmp_path)
        run(f"a{stops}.b", tmp_path, counter.add, counter.add)
        lost.append(counter.value == 1)
    assert lost == [False, True, True, False]  # from reading to writing


@pytest.mark.parametrize("schedule", ["a.b", "b.a", *(f"a{stops}.b" for stops in range(1, 9)), "r1", "r2", "r3", "r4"])
def test_an_update_under_a_lock_is_lost_in_none(schedule: str, tmp_path: Path) -> None:
    counter = Counter(tmp_path)
    simulation = run(schedule, tmp_path, counter.add_locked, counter.add_locked)
    assert counter.value == 2
    assert not simulation.deadlocked


def test_two_locks_in_opposite_order_are_a_deadlock(tmp_path: Path) -> None:
    def take(first: str, second: str) -> None:
        with FileLock(tmp_path / first), FileLock(tmp_path / second):
            pass

    works = (lambda: take("x", "y"), lambda: take("y", "x"))
    outcomes = {run(f"a{stops}.b", tmp_path, *works).deadlocked for stops in range(1, 12)}
    assert outcomes == {False, True}


def test_a_killed_command_cannot_clean_up_and_leaves_half_a_write(tmp_path: Path) -> None:
    def write() -> None:
        descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, b"12345678")
        finally:
            os.close(descriptor)
            (tmp_path / "file").unlink()

    simulation = run("a!a3", tmp_path, write)
    assert simulation.actors[0].killed
    assert (tmp_path / "file").read_bytes() == b"1234"
    assert [step.operation for step in simulation.steps] == ["begin", "write-open", "write"]


def test_a_killed_command_lets_go_of_its_locks(tmp_path: Path) -> None:
    def hold() -> None:
        with FileLock(tmp_path / "lock"):
            (tmp_path / "held").touch()
            (tmp_path / "held").unlink()

    stops = run("a", tmp_path, hold).actors[0].stops
    simulations = [run(f"a.b!a{stop}", tmp_path, hold, hold) for stop in range(2, stops + 1)]
    assert len(simulations) > 4
    assert all(simulation.actors[0].killed and simulation.actors[1].succeeded for simulation in simulations)


def test_errors_of_commands_are_kept_for_the_oracle(tmp_path: Path) -> None:
    simulation = run("a.b", tmp_path, (tmp_path / "missing").read_bytes, lambda: 3)
    assert isinstance(simulation.actors[0].error, FileNotFoundError)
    assert simulation.actors[1].result == 3


turns = st.lists(st.tuples(st.integers(0, 2), st.none() | st.integers(0, 999)), min_size=1, max_size=5).map(tuple)
crashes = st.none() | st.tuples(st.integers(0, 2), st.integers(1, 999))


@given(st.builds(Schedule, turns, crash=crashes) | st.builds(Schedule, seed=st.integers(0, 10**6), crash=crashes))
def test_a_schedule_is_its_text(schedule: Schedule) -> None:
    assert Schedule.parse(str(schedule)) == schedule


@given(st.data())
def test_every_order_of_one_and_two_switches_is_planned_once(data: st.DataObject) -> None:
    stops = data.draw(st.lists(st.integers(1, 7), min_size=2, max_size=3))
    switches = tuple(tuple(range(1, count)) for count in stops)
    places = Places(switches, tuple(tuple(range(1, count + 1)) for count in stops), tuple(stops))
    drawn = list(islice(planned(places), 5000))
    texts = [str(schedule) for schedule in drawn if schedule.seed is None]
    assert len(texts) == len(set(texts))
    names = "abc"[: len(stops)]
    for one, places_of_one in zip(names, switches, strict=True):
        for two, places_of_two in zip(names, switches, strict=True):
            if one != two:
                assert {f"{one}{place}.{two}" for place in places_of_one} <= set(texts)
                both = {f"{one}{i}.{two}{j}.{one}" for i in places_of_one for j in places_of_two}
                assert both <= set(texts)


def test_switches_are_tried_where_operations_touch() -> None:
    reader = [Step("a", "begin"), Step("a", "open", "x/1"), Step("a", "stat", "y"), Step("a", "listdir", "x")]
    writer = [
        Step("b", "begin"),
        Step("b", "write-open", "x/1"),
        Step("b", "rename", "x/2", "z"),
        Step("b", "mkdir", "x"),
    ]
    places = find_places([reader + writer, writer + reader], [True, True])
    assert places.switches == ((1, 3), (1, 2, 3))  # nobody else touches y
    assert places.kills == ((), (2, 3, 4))
    assert places.stops == (4, 4)


@pytest.fixture(scope="module")
def bench() -> Iterator[Laboratory]:
    with laboratory() as made:
        yield made


@pytest.mark.parametrize(
    "token",
    [
        "write-write@healthy.disk/a40.b100.a",
        "append-read@healthy.bucket/r3",
        "append-verify@healthy.disk/r5!a90",
        "means-means@healthy.disk/a31.b.a!b35",
        "append-copy-many@healthy.disk/r2",
    ],
)
def test_a_token_repeats_the_same_operations(token: str, bench: Laboratory) -> None:
    scenario, schedule = parse_token(token)
    first = bench.try_order(scenario, schedule)
    with laboratory() as another:
        second = another.try_order(scenario, schedule)
    assert first.token == token
    assert first.steps == second.steps
    assert first.kinds == second.kinds


@pytest.mark.parametrize("is_locked", [False, True])
def test_what_orders_leave_is_judged_once(is_locked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether something is found or not, it is the same as that of an oracle that remembers nothing."""
    if not is_locked:  # two write one file, which can end damaged
        monkeypatch.setattr(atomic_file, "FileLock", lambda path, named: nullcontext())
    scenario = SCENARIOS["adapt-adapt@healthy.disk"]
    with laboratory() as remembering, laboratory() as forgetting:
        schedules = [*islice(planned(remembering.places(scenario)), 30)]
        found = [remembering.try_order(scenario, schedule).kinds for schedule in schedules]
        for schedule, kinds in zip(schedules, found, strict=True):
            forgetting.verdicts.clear()
            assert forgetting.try_order(scenario, schedule).kinds == kinds
    assert len(remembering.verdicts) < len(schedules) / 2
    assert any(found) is not is_locked


@pytest.mark.parametrize("name", ["write-read@healthy.disk", "append-read@healthy.bucket"])
def test_commands_stop_at_their_storage(name: str, bench: Laboratory) -> None:
    stops = bench.try_order(SCENARIOS[name], Schedule.parse("a.b")).stops
    assert min(stops) > 10


def test_a_kill_at_any_write_of_an_append_loses_nothing(bench: Laboratory) -> None:
    """Whether the rows are there, or none of them and the repetition brings them, is the oracle's to say."""
    scenario = SCENARIOS["write-read@healthy.disk"]
    for stop in bench.places(scenario).kills[0][::4]:
        trial = bench.try_order(scenario, Schedule.parse(f"a.b!a{stop}"))
        assert not trial.findings, f"{trial.token}: {trial.findings[0]}"


def die(connection: Any, current: Any) -> None:
    """Stands in for a process that a command takes with it in its third order."""
    places = Places(((1, 2), (1, 2)), ((), ()), (3, 3))
    connection.send("ready")
    task = connection.recv()
    for number in range(task.first, task.first + 3):
        current.value = number
        if number == 2:
            os.abort()
        connection.send((f"{task.name}/{number}", number, places, 0.01, bytes([number]), []))
    connection.send(None)
    connection.recv()


def test_a_process_that_dies_is_a_finding_and_the_next_goes_on() -> None:
    (tally,) = explore(["x"], seconds=30, workers=1, most=5, work=die)
    (found,) = tally.found.values()
    assert "SIGABRT" in found.kind
    assert found.token.startswith("x/")
    assert (found.after, tally.orders) == (3, 6)


@pytest.mark.slow
def test_commands_at_once_break_no_rule() -> None:
    tallies = explore(list(SCENARIOS), SECONDS)
    assert sum(tally.orders for tally in tallies)
    assert not any(tally.found for tally in tallies), "\n" + table(tallies)
