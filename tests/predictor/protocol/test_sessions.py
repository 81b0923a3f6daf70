"""Sessions against a plain computation over all categories known by then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import actstore
from actstore.errors import InvalidInputError
from baselines.class_mean import ClassMean
from baselines.finetune_head import FineTunedHead
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.evaluation import AllWayTask, all_way_task
from predictor.protocol.head import Head
from predictor.protocol.sessions import plan_sessions, run_sessions

NAMES = [f"c{number}" for number in range(9)]


@pytest.fixture
def task(tmp_path: Path) -> AllWayTask:
    random = np.random.default_rng(3)
    centres = random.random((9, 6))
    splits = {}
    for name, count in (("train", 8), ("val", 5)):
        labels = np.repeat(np.arange(9), count)
        splits[name] = (np.abs(centres[labels] + 0.35 * random.standard_normal((len(labels), 6))), labels)
    store = actstore.from_arrays(tmp_path / "x.zarr", splits, classes=NAMES)
    # not in the order of the store: sessions follow the split
    split = CategorySplit(tuple(NAMES[:4]), ("c8", "c4", "c7", "c5", "c6"))
    return all_way_task(store["train"], store["val"], split)


def test_each_session_adds_categories_and_the_last_may_be_smaller() -> None:
    assert plan_sessions(60, 40, 5) == (60, 65, 70, 75, 80, 85, 90, 95, 100)
    assert plan_sessions(4, 5, 2) == (4, 6, 8, 9)
    with pytest.raises(InvalidInputError, match="sessions need new categories"):
        plan_sessions(4, 0, 2)


@pytest.mark.numeric
def test_accuracies_are_those_of_all_categories_known_by_then(task: AllWayTask) -> None:
    result = run_sessions(ClassMean(), task, way=2, shots=3, draws=2, seed=1)
    assert result.categories == (4, 6, 8, 9)
    for draw in range(2):
        support = task.support(3, 1, draw)
        for session, count in enumerate(result.categories):
            names = [*task.base, *task.novel][:count]
            means = [task.train.of_class(name).mean(0) for name in task.base]
            means += [examples.mean(0).numpy() for examples in support.activations[: count - 4]]
            units = [mean / np.linalg.norm(mean) for mean in means]
            right: dict[str, list[bool]] = {name: [] for name in names}
            for place, name in enumerate(names):
                for row in task.test.of_class(name):
                    right[name].append(int(np.argmax([unit @ row for unit in units])) == place)
            base, novel = ([one for name in part for one in right[name]] for part in (names[:4], names[4:]))
            figures = {name: values[draw, session] for name, values in result.figures.items()}
            assert figures["accuracy"] == pytest.approx(100 * np.mean([*base, *novel]))
            assert figures["base"] == pytest.approx(100 * np.mean(base))
            if novel:
                b, n = 100 * np.mean(base), 100 * np.mean(novel)
                assert figures["novel"] == pytest.approx(n)
                assert figures["harmonic_mean"] == pytest.approx(2 * b * n / (b + n) if b + n else 0)
            else:
                assert np.isnan(figures["harmonic_mean"])
    np.testing.assert_allclose(result.averages("accuracy"), result.figures["accuracy"].mean(1))
    np.testing.assert_allclose(result.last("accuracy"), result.figures["accuracy"][:, -1])
    assert result.averages("harmonic_mean").shape == (2,)


def test_what_trains_in_a_session_is_refused(task: AllWayTask) -> None:
    head = Head(torch.ones(4, 6), torch.zeros(4), task.base)
    tuned = FineTunedHead(head)
    with pytest.raises(InvalidInputError, match="a session has no training"):
        run_sessions(tuned, task, way=2, shots=1, draws=1)
