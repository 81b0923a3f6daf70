"""Sessions from examples that a file lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import actstore
import predictor
from actstore.errors import InvalidInputError
from actstore.store import ActivationStore
from baselines.class_mean import ClassMean
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.fixed_examples import read_examples

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
