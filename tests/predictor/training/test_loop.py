"""A training in a folder: steps, log, checkpoints, resumption, and when it stops."""

from __future__ import annotations

import csv
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from actstore.errors import DamagedError, DivergedError, InvalidInputError, LockedError
from predictor.training import Figures, RunOptions, Trainee, read_trained, train
from predictor.training.loop import largest, read_log, read_model, read_training, write_log
from predictor.training.trainee import Curves, Panel

IDENTITY = {"method": "line", "config": {"rate": 0.1}}
EVERY_STEP = RunOptions(checkpoint_seconds=0)


class Line(Trainee):
    """A line fitted with Adam, whose state has more than a momentum; step n sees the point (n, 2n + 1)."""

    def __init__(self, fault: int = -1, stop_after: int = 10**9) -> None:
        self.module = self.layer = nn.Linear(1, 1, device="meta").to_empty(device="cpu")
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.optimiser = torch.optim.Adam(self.layer.parameters(), lr=0.1)
        self.fault, self.stop_after, self.numbers = fault, stop_after, list[int]()

    def step(self, number: int) -> Figures:
        self.numbers.append(number)
        loss = (self.layer(torch.tensor([[float(number)]])) - (2 * number + 1)).square().sum()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return {"loss": float("nan") if number == self.fault else loss.item(), "twice": 2.0 * number}

    def measure(self) -> Figures:
        self.has_converged = max(self.numbers) >= self.stop_after
        return {"weight": self.layer.weight.item()}

    def keep(self, folder: Path) -> None:
        (folder / "extra.txt").write_text("kept")


def log(folder: Path) -> list[dict[str, str]]:
    with (folder / "log.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_steps_log_and_files(tmp_path: Path) -> None:
    line, seen = Line(), list[tuple[int, int]]()
    trained = train(
        tmp_path / "run", IDENTITY, lambda: line, 7, 3, report=lambda done, total, figures: seen.append((done, total))
    )
    assert line.numbers == list(range(7))
    assert seen == [(done, 7) for done in range(1, 8)]
    lines = log(tmp_path / "run")
    assert [one["step"] for one in lines] == ["3", "6", "7"]
    assert [float(one["twice"]) for one in lines] == [2, 8, 12]  # means over 3, 3 and 1 steps
    assert trained.figures["twice"] == 12
    assert trained.figures["weight"] == pytest.approx(line.layer.weight.item())
    assert {file.name for file in (tmp_path / "run").iterdir()} == {
        "model.safetensors", "model.json", "log.csv", "extra.txt", "lock",
    }  # fmt: skip
    text = json.loads((tmp_path / "run" / "model.json").read_text())
    assert text["identity"] == {**IDENTITY, "run": {"steps": 7, "every": 3}}
    assert torch.equal(trained.tensors["weight"], line.layer.weight)


@pytest.mark.parametrize("stops", [[1], [3], [4], [7], [2, 2, 5, 7]], ids=str)
def test_killed_and_repeated_it_ends_the_same(tmp_path: Path, stops: list[int]) -> None:
    def kill(stop: int) -> Any:
        def report(done: int, total: int, figures: Figures) -> None:
            if done == stop:
                raise KeyboardInterrupt

        return report

    whole = train(tmp_path / "a", IDENTITY, Line, 7, 3)
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "b", IDENTITY, Line, 7, 3, EVERY_STEP, kill(stop))
    last = Line()
    again = train(tmp_path / "b", IDENTITY, lambda: last, 7, 3)
    assert last.numbers == list(range(stops[-1] - 1, 7))  # goes on, and does not begin again
    assert all(torch.equal(again.tensors[name], whole.tensors[name]) for name in whole.tensors)
    strip = [[{**line, "seconds": ""} for line in log(tmp_path / name)] for name in "ab"]
    assert strip[0] == strip[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_after_the_step_with_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    def interrupt(done: int, total: int, figures: Figures) -> None:
        if done == 4:
            os.kill(os.getpid(), number)

    handlers = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "b", IDENTITY, Line, 7, 3, report=interrupt)
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)] == handlers
    last = Line()
    again = train(tmp_path / "b", IDENTITY, lambda: last, 7, 3)
    assert last.numbers == [4, 5, 6]
    whole = train(tmp_path / "a", IDENTITY, Line, 7, 3)
    assert all(torch.equal(again.tensors[name], whole.tensors[name]) for name in whole.tensors)


def test_a_second_signal_acts_at_once(tmp_path: Path) -> None:
    def interrupt(done: int, total: int, figures: Figures) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, IDENTITY, Line, 7, 3, report=interrupt)
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_signals_that_others_handle_are_left_to_them(tmp_path: Path) -> None:
    heard = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        train(tmp_path, IDENTITY, Line, 2, report=lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM] * 2


def test_a_training_on_another_thread_notes_no_signals(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(train, tmp_path, IDENTITY, Line, 2).result().steps == 2


def test_checkpoints_are_written_now_and_then(tmp_path: Path) -> None:
    def look(done: int, total: int, figures: Figures) -> None:
        assert not (tmp_path / "checkpoint.safetensors").exists()

    train(tmp_path, IDENTITY, Line, 5, 2, RunOptions(checkpoint_seconds=1000), look)


def test_a_finished_training_is_read_and_another_refused(tmp_path: Path) -> None:
    train(tmp_path, IDENTITY, Line, 3, 3)

    def never() -> Trainee:
        raise AssertionError("must not be made")

    assert train(tmp_path, IDENTITY, never, 3, 3).steps == 3
    for identity, steps, message in (
        ({**IDENTITY, "config": {"rate": 0.2}}, 3, "belongs to another training: config rate was 0.1, is 0.2"),
        (IDENTITY, 4, "run steps was 3, is 4"),
        ({**IDENTITY, "method": "curve"}, 3, "its method differs"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            train(tmp_path, identity, never, steps, 3)
    assert train(tmp_path, IDENTITY, Line, 4, 3, RunOptions(restart=True)).steps == 4


def test_a_figure_that_is_no_number_stops_it(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"loss became nan in step 1 in .*no checkpoint yet"):
        train(tmp_path / "a", IDENTITY, lambda: Line(fault=0), 9, 3, EVERY_STEP)
    with pytest.raises(DivergedError, match=r"loss became nan in step 6 in .*the last good checkpoint is kept"):
        train(tmp_path / "b", IDENTITY, lambda: Line(fault=5), 9, 3, EVERY_STEP)
    _, text = read_training(tmp_path / "b" / "checkpoint.safetensors")
    assert text["state"]["step"] == 5
    assert not (tmp_path / "b" / "model.safetensors").exists()
    assert train(tmp_path / "b", IDENTITY, Line, 9, 3).steps == 9  # from the good one on


def test_weights_that_are_no_numbers_are_not_kept(tmp_path: Path) -> None:
    class Worse(Line):
        def step(self, number: int) -> Figures:
            figures = super().step(number)
            if number == 4:
                self.layer.bias.data.fill_(torch.inf)  # of which no figure tells
            return figures

    with pytest.raises(DivergedError, match=r"bias became inf in step 5 in .*is kept"):
        train(tmp_path / "a", IDENTITY, Worse, 9, 9, EVERY_STEP)
    tensors, text = read_training(tmp_path / "a" / "checkpoint.safetensors")
    assert text["state"]["step"] == 4
    assert torch.isfinite(tensors["bias"]).all()
    with pytest.raises(DivergedError, match="bias became inf in step 5"):
        train(tmp_path / "b", IDENTITY, Worse, 5, 9)
    assert not (tmp_path / "b" / "model.safetensors").exists()


def test_the_largest_of_each_tensor() -> None:
    found = largest({"a": torch.tensor([1.0, -3.0]), "b": torch.tensor([1.0, torch.nan]), "c": torch.tensor([7]),
                     "d": torch.empty(0), "e": torch.tensor(-torch.inf)})  # fmt: skip
    assert found == pytest.approx({"a": 3.0, "b": float("nan"), "e": float("inf")}, nan_ok=True)


def test_converged_it_stops_early(tmp_path: Path) -> None:
    trained = train(tmp_path, IDENTITY, lambda: Line(stop_after=5), 90, 3)
    assert trained.steps == 6
    assert [line["step"] for line in log(tmp_path)] == ["3", "6"]


def test_one_training_per_folder(tmp_path: Path) -> None:
    def report(done: int, total: int, figures: Figures) -> None:
        with pytest.raises(LockedError, match="another process is training in"):
            train(tmp_path, IDENTITY, Line, 2)

    train(tmp_path, IDENTITY, Line, 1, report=report)


def test_reading_what_was_trained(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"line needs training, and .* is not there: run `ppa line`"):
        read_trained(tmp_path, "line", "ppa line")
    with pytest.raises(DivergedError):
        train(tmp_path, IDENTITY, lambda: Line(fault=2), 3, options=EVERY_STEP)
    with pytest.raises(InvalidInputError, match="is interrupted; the same command goes on: run `ppa line`"):
        read_trained(tmp_path, "line", "ppa line")
    train(tmp_path, IDENTITY, Line, 3)
    assert read_trained(tmp_path, "line", "ppa line").steps == 3
    with pytest.raises(InvalidInputError, match="must hold curve, got line; choose another folder"):
        read_trained(tmp_path, "curve", "ppa curve")


def test_a_checkpoint_that_is_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(DivergedError):
        train(tmp_path, IDENTITY, lambda: Line(fault=2), 3, options=EVERY_STEP)
    file = tmp_path / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(DamagedError, match=r"checkpoint\.safetensors is damaged"):
        train(tmp_path, IDENTITY, Line, 3)
    file.rename(tmp_path / "model.safetensors")
    with pytest.raises(DamagedError, match=r"model\.safetensors is damaged"):
        read_model(tmp_path / "model.safetensors")


def test_a_log_without_lines_has_a_header(tmp_path: Path) -> None:
    write_log(tmp_path, [])
    assert (tmp_path / "log.csv").read_text() == "step\n"
    assert read_log(tmp_path) == read_log(tmp_path / "nowhere") == []


@pytest.mark.parametrize("kill", [3, 5, 8])
def test_figures_read_now_and_then_are_the_same(tmp_path: Path, kill: int) -> None:
    """As on a GPU: tensors that are read every fourth step, and at the end of a line."""

    class Waiting(Line):
        steps_per_reading = 4

        def step(self, number: int) -> dict[str, Any]:
            return {key: torch.tensor(value, dtype=torch.float64) for key, value in super().step(number).items()}

    def report(done: int, total: int, figures: Figures) -> None:
        seen.append(done)
        if done >= kill and is_killed:
            raise KeyboardInterrupt

    seen, is_killed = list[int](), True
    train(tmp_path / "a", IDENTITY, Line, 9, 5)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "b", IDENTITY, Waiting, 9, 5, EVERY_STEP, report)
    is_killed = False
    train(tmp_path / "b", IDENTITY, Waiting, 9, 5, EVERY_STEP, report)
    assert set(seen) == {4, 5, 8, 9}
    assert [line | {"seconds": 0} for line in read_log(tmp_path / "a")] == [
        line | {"seconds": 0} for line in read_log(tmp_path / "b")
    ]


def test_a_trainee_whose_own_files_are_the_model_keeps_its_checkpoint(tmp_path: Path) -> None:
    class Files(Line):
        curves = Curves((Panel("loss", {"loss": "loss"}), Panel("absent", {"no column": "absent"})))

        def model(self) -> None:
            return None

        def after_line(self, folder: Path, history: Any) -> None:
            (folder / "weight.txt").write_text(str(history[-1]["weight"]))

    trained = train(tmp_path, IDENTITY, Files, 7, 3, products=("weight.txt",))
    assert [line["step"] for line in trained.history] == [3, 6, 7]
    assert {file.name for file in tmp_path.iterdir()} == {
        "checkpoint.safetensors", "checkpoint.json", "log.csv", "curves.png", "extra.txt", "weight.txt", "lock",
    }  # fmt: skip
    never = Line(fault=0)
    assert train(tmp_path, IDENTITY, lambda: never, 7, 3).history == trained.history
    assert not never.numbers
    with pytest.raises(DivergedError):
        train(tmp_path, IDENTITY, lambda: never, 7, 3, RunOptions(restart=True), products=("weight.txt",))
    assert {file.name for file in tmp_path.iterdir()} == {"extra.txt", "lock"}
