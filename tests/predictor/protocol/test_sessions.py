"""Sessions against a plain computation over all categories known by then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import actstore
import predictor
from actstore.errors import InvalidInputError
from actstore.store import ActivationStore
from baselines.class_mean import ClassMean
from baselines.finetune import FineTunedHead
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.evaluation import AllWayTask, all_way_task
from predictor.protocol.head import Head
from predictor.protocol.sessions import plan_sessions, read_examples, run_sessions

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


SPLIT = CategorySplit(("base",), ("finch", "wren"))


@pytest.fixture
def store(tmp_path: Path) -> ActivationStore:
    random = np.random.default_rng(0)
    store = actstore.create(tmp_path / "x.zarr", classes=["base", "finch", "wren"], dim=6)
    for split in ("train", "test"):
        labels = np.repeat(np.arange(3), 4)
        rows = np.eye(3, 6)[labels] * 2 + 0.5 * random.random((12, 6))
        ids = [f"{store.classes[label]}/{split}_{row}.jpg" for row, label in enumerate(labels)]
        with store.writer(split) as writer:
            writer.append(rows.astype("f4"), labels, ids)
    return store


def listed(folder: Path, *lines: str) -> Path:
    path = folder / "list.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_rows_are_those_of_the_file_in_its_order(store: ActivationStore, tmp_path: Path) -> None:
    path = listed(
        tmp_path, "images/wren/train_10.jpg", "images\\finch\\train_7.jpg", "images/base/train_0.jpg", "",
        "elsewhere/finch/train_4.jpg,finch", "wren/train_9.jpg", "a/wren/train_9.jpg", "wren/train_11.jpg",
    )  # fmt: skip
    assert read_examples(path, store["train"], SPLIT.novel, 2) == ((7, 4), (10, 9))


def test_sessions_show_them_and_draw_nothing(store: ActivationStore, tmp_path: Path) -> None:
    path = listed(tmp_path, "train_4.jpg", "train_8.jpg")
    results = predictor.run_sessions(
        [ClassMean()], store, SPLIT, way=1, shots=1, examples=path, calibrate=False, test="test", progress=False
    )
    train, test = store["train"], store["test"]
    shown = np.stack([train.means()[0], *train.take([4, 8])])
    shown /= np.linalg.norm(shown, axis=1, keepdims=True)
    right = (test.take(np.arange(12)) @ shown.T).argmax(1) == test.labels
    (record,) = results.records
    assert record["draws"] == 1
    assert record["last_accuracy"] == pytest.approx(100 * right.mean(), abs=0.01)


def test_images_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    store = actstore.create(tmp_path / "x.zarr", classes=["base", "finch", "wren"], dim=2)
    labels = np.array([0, 1, 1, 2, 2])
    ids = [f"{store.classes[label]}/{row % 2}.jpg" for row, label in enumerate(labels)]
    with store.writer("train") as writer:
        writer.append(np.ones((5, 2), "f4"), labels, ids)
    path = listed(tmp_path, "photos/base/0.jpg", "photos/wren/0.jpg", "photos/finch/1.jpg")
    assert read_examples(path, store["train"], SPLIT.novel, 1) == ((1,), (4,))
    with pytest.raises(InvalidInputError, match=r"names 1\.jpg"):
        read_examples(listed(tmp_path, "1.jpg"), store["train"], SPLIT.novel, 1)


@pytest.mark.parametrize(
    ("lines", "message"),
    [(["train_4.jpg"], r"must list 1 images of 'wren'"),
     (["train_4.jpg", "test_8.jpg"], r"must list 1 images of 'wren'")],
)  # fmt: skip
def test_a_category_without_enough_images_is_named(
    store: ActivationStore, tmp_path: Path, lines: list[str], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_examples(listed(tmp_path, *lines), store["train"], SPLIT.novel, 1)


def test_a_file_that_cannot_be_read_is_named(store: ActivationStore, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"missing\.txt"):
        read_examples(tmp_path / "missing.txt", store["train"], SPLIT.novel, 1)
