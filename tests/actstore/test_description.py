"""What a store and a split say of themselves, for people, notebooks and `actstore info`."""

from __future__ import annotations

import html.parser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore


@pytest.fixture
def store(tmp_path: Path) -> actstore.ActivationStore:
    values = np.ones((1200, 8), np.float32)
    made = actstore.from_arrays(
        tmp_path / "<x>.zarr", {"train": (values, np.arange(1200) % 2), "val": (values[:7], None)}, classes=["a", "b"]
    )
    with made.writer("more") as writer:
        writer.append(values[:5], np.zeros(5, int))
        writer.discard()
    return made


class Cells(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.rows += [[]] if tag == "tr" else []

    def handle_data(self, data: str) -> None:
        if self.rows:
            self.rows[-1].append(data)


def test_a_store_shows_its_splits(store: actstore.ActivationStore) -> None:
    said = repr(store)
    for part in (str(store.path), "train: 1,200 rows", "val: 7 rows", "dim 8", "2 classes"):
        assert part in said
    page = Cells()
    page.feed(store._repr_html_())
    assert page.rows[0] == ["split", "rows", "dim", "type", "size", "complete"]
    assert ["train", "1,200", "8", "float32", "38.4 KB", "yes"] in page.rows
    assert "&lt;x&gt;" in store._repr_html_()


def test_a_split_shows_itself(store: actstore.ActivationStore) -> None:
    assert "val: 7 rows" in repr(store["val"])
    assert "train" not in repr(store["val"]).removeprefix(f"<Split {store.path}")
    assert store["val"]._repr_html_().count("<tr>") == 2


def test_description_is_what_info_prints(store: actstore.ActivationStore) -> None:
    facts = store.describe(classes=True)
    assert facts["class_rows"]["train"] == {"a": 600, "b": 600}
    assert [split["rows"] for split in facts["splits"] if split["complete"]] == [1200, 7]


def test_labels_that_are_lacking_are_counted(tmp_path: Path) -> None:
    values = np.ones((4, 3), np.float32)
    labels = np.array(["a", "a", "b", "b"])
    made = actstore.from_arrays(
        tmp_path / "y.zarr", {"train": (values, labels), "val": (values, np.array(list("acca")))}
    )
    assert made.unlabelled_rows() == {"train": 0, "val": 0}
    assert made.classes_train_lacks() == {"val": ["c"]}
