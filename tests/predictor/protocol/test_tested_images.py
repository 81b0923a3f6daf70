"""Which split is measured on, and what is said of its images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
import baselines
import predictor
from actstore.errors import IncompleteError, InvalidInputError
from baselines.oracle import NearestOracle
from predictor.protocol.evaluation import all_way_task
from predictor.protocol.setting import describe_test, find_test_split, require_test_split, thin_categories

CLASSES = ("a", "b", "c", "d")
HALVES = predictor.CategorySplit(("a", "b"), ("c", "d"))
Make = Callable[..., actstore.ActivationStore]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A store with so many rows of each class in each split; a class -1 is a row without a label."""

    def made(**counts: list[int]) -> actstore.ActivationStore:
        random, splits = np.random.default_rng(0), dict[str, Any]()
        for name, of_class in counts.items():
            labels = np.repeat(np.arange(len(of_class)), of_class) if len(of_class) > 1 else np.full(of_class[0], -1)
            splits[name] = (np.abs(random.standard_normal((len(labels), 8))).astype(np.float32), labels)
        return actstore.from_arrays(tmp_path / "x.zarr", splits, classes=CLASSES)

    return made


def test_a_labelled_test_split_is_measured_on_and_constants_are_fitted_on_the_other(make: Make) -> None:
    store = make(train=[9, 9, 9, 9], val=[8, 8, 8, 8], test=[9, 9, 9, 9])
    assert require_test_split(store, "train", None, HALVES).name == "test"
    assert require_test_split(store, "train", "val", HALVES).name == "val"
    fitted = find_test_split(store, "train", None)
    assert fitted is not None
    assert fitted.name == "val"
    results = predictor.evaluate(baselines.make("class-mean"), store, HALVES, shots=1, draws=2)
    assert not any("left out" in line or "no method is tested" in line for line in results.warnings)


def test_a_test_split_without_labels_is_not_measured_on(make: Make) -> None:
    store = make(train=[9, 9, 9, 9], val=[8, 8, 8, 8], test=[5])
    assert require_test_split(store, "train", None, HALVES).name == "val"
    assert "test=" not in describe_test(store, all_way_task(store["train"], store["val"], HALVES))


def test_a_test_split_without_novel_rows_is_not_measured_on(make: Make) -> None:
    store = make(train=[9, 9, 9, 9], val=[8, 8, 8, 8], test=[5, 5, 0, 0])
    assert require_test_split(store, "train", None, HALVES).name == "val"
    assert require_test_split(store, "train", "test", HALVES).name == "test"


def test_an_unfinished_test_split_stops_nothing(make: Make) -> None:
    store = make(train=[9, 9, 9, 9], val=[8, 8, 8, 8])
    with pytest.raises(RuntimeError), store.writer("test") as writer:
        writer.append(np.ones((3, 8), np.float32), ids=["1", "2", "3"], labels=[0, 1, 2])
        raise RuntimeError("interrupted")
    opened = actstore.open(store.path)
    assert not opened.splits["test"].complete
    for test in ("val", None):
        predictor.evaluate(baselines.make("class-mean"), opened, HALVES, shots=1, draws=2, test=test)
        predictor.run_sessions(baselines.make("class-mean"), opened, HALVES, way=1, shots=1, draws=1, test=test)
    with pytest.raises(IncompleteError):
        predictor.evaluate(baselines.make("class-mean"), opened, HALVES, shots=1, draws=2, test="test")


def test_the_split_and_its_images_are_said(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    store = make(train=[9, 9, 9, 9], val=[8, 8, 8, 8], test=[3, 4, 5, 6])
    predictor.evaluate(baselines.make("class-mean"), store, HALVES, shots=1, draws=2)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("test images")]
    assert "7 of base and 11 of novel" in line
    assert "split test" in line
    assert "on val" in line


def test_images_that_are_left_out_for_constants_are_not_counted(make: Make) -> None:
    store = make(train=[9] * 4, val=[10] * 4)
    task = all_way_task(store["train"], store["val"], HALVES)
    said = describe_test(store, replace(task, without=(0, 1, 10, 11)))
    assert "test images: 16 of base (4 are left out for constants) and 20 of novel" in said


def test_categories_without_test_images_or_with_few_are_named(make: Make) -> None:
    store = make(train=[9, 9, 9, 9], val=[8, 0, 1, 9])
    without, few = thin_categories(store["val"], HALVES)
    assert "'b'" in without
    assert "'c'" in few
    assert {without, few} <= set(predictor.evaluate(baselines.make("class-mean"), store, HALVES, shots=1).warnings)
    assert thin_categories(store["train"], HALVES) == []


def test_categories_with_too_few_images_are_in_no_task(make: Make) -> None:
    store, methods = make(train=[9, 9, 9, 1]), baselines.make_for_episodes("class-mean")
    novel = predictor.CategorySplit(("a",), ("b", "c", "d"))
    results = predictor.run_episodes(methods, store, novel, way=2, shots=1, tasks=3)
    (line,) = [line for line in results.warnings if "'d'" in line]
    assert "no task" in line
    with pytest.raises(InvalidInputError, match="'d'"):
        predictor.run_episodes(methods, store, novel, way=3, shots=1, tasks=3)


@pytest.mark.parametrize("counts", [{"train": [9, 9, 9, 2], "val": [8] * 4}, {"train": [9] * 4, "val": [8, 8, 8, 0]}])
def test_a_novel_category_with_too_few_images_is_left_out_of_the_table(make: Make, counts: dict[str, Any]) -> None:
    store, without = make(**counts), predictor.CategorySplit(("a", "b"), ("c",))
    methods = [*baselines.make("class-mean"), NearestOracle(HALVES.novel)]
    results = predictor.evaluate(methods, store, HALVES, shots=[1, 3], draws=2)
    (line,) = [line for line in results.warnings if "left out" in line]
    assert "'d'" in line
    assert "over the other 1" in line
    assert results.records == [
        {**row, "warning": results.records[0]["warning"]}
        for row in predictor.evaluate(methods, store, without, shots=[1, 3], draws=2).records
    ]
    sessions = predictor.run_sessions(methods[:1], store, HALVES, way=1, shots=3, draws=2)
    assert sessions.records[0]["categories"] == [2, 3]
    assert line in sessions.warnings


def test_where_no_novel_category_has_enough_images_the_first_is_named(make: Make) -> None:
    store = make(train=[9, 9, 2, 1], val=[8] * 4)
    with pytest.raises(InvalidInputError, match="'d' has 1 rows, too few for 3 shots"):
        predictor.evaluate(baselines.make("class-mean"), store, HALVES, shots=3)


def test_a_phi_is_measured_with_every_split_of_its_base(make: Make, tmp_path: Path) -> None:
    store, held = make(train=[9] * 4, val=[8] * 4), predictor.CategorySplit(("a", "b"), ("c",), ("d",))
    phi = predictor.train_phi(store, held, out=tmp_path / "phi", epochs=1, batches=1, progress=False)
    accepted = predictor.CategorySplit(("b", "a"), ("c",))
    assert predictor.evaluate(phi, store, accepted, shots=1, draws=2).records
    with pytest.raises(InvalidInputError, match="'d', which this split calls novel, is a validation category"):
        predictor.evaluate(phi, store, HALVES, shots=1)
    with pytest.raises(InvalidInputError, match="was trained with other categories"):
        predictor.evaluate(phi, store, predictor.CategorySplit(("a",), ("c",)), shots=1)


def test_a_session_adds_no_more_categories_than_are_novel(make: Make) -> None:
    store = make(train=[9, 9, 9, 9], val=[8, 8, 8, 8])
    results = predictor.run_sessions(baselines.make("class-mean"), store, HALVES, way=50, shots=1, draws=2)
    assert any("all 2 novel" in line for line in results.warnings)


def test_the_share_that_neighbours_are_really_of_is_said(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    store = make(train=[9, 9, 9, 9], val=[8, 8, 8, 8])
    methods = baselines.make("nn", train=store["train"], split=HALVES)
    predictor.evaluate(methods, store, HALVES, shots=1, draws=2)
    assert capsys.readouterr().err.count("2 of 18") == len(methods) - 1  # all but the one of 100%
