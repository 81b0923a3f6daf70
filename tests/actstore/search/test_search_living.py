"""An index lives with its store: moved with it, right after an append, extended, and never used where it is old."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import actstore
from actstore.compute.tensors import one_thread
from actstore.errors import InvalidInputError
from actstore.search import BoundedSearch, ExactSearch, bounded, plan
from actstore.search.approximate import ApproximateSearch
from actstore.search.index_files import find, folder, remarks
from actstore.search.indexing import build_index, extend_index
from actstore.spec import INDEX_KINDS
from actstore.storage.atomic_file import with_checksum

pytestmark = pytest.mark.numeric
ROWS, MORE, DIM = 2000, 300, 48


def values_of(seed: int, rows: int) -> NDArray[np.float16]:
    random, centres = np.random.default_rng(seed), np.random.default_rng(1).standard_normal((12, DIM))
    return (centres[random.integers(0, 12, rows)] + 0.3 * random.standard_normal((rows, DIM))).astype(np.float16)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(plan, "choose_widths", lambda *_: (16, 24))
    monkeypatch.setattr(bounded, "_FEWEST", 100)
    with one_thread():
        yield make(tmp_path / "x.zarr", 0)


def make(path: Path, seed: int) -> actstore.ActivationStore:
    return actstore.from_arrays(path, {"train": (values_of(seed, ROWS), np.zeros(ROWS, int))}, classes=["a"])


def append(store: Any, rows: int = MORE, seed: int = 7) -> Any:
    with store.writer("train") as writer:
        writer.append(values_of(seed, rows), np.zeros(rows, np.int64))
    return actstore.open(store.path)["train"]


def assert_exact(split: Any, method: str = "bounded") -> None:
    queries = values_of(3, 20).astype(np.float32)
    for rows in (None, np.arange(0, len(split), 2), np.arange(5, len(split), 9)):
        found = split.search(queries, 4, method=method, rows=rows)
        expected = ExactSearch(split).search(queries, 4, rows)
        np.testing.assert_array_equal(found[1], expected[1])
        np.testing.assert_array_equal(found[0], expected[0])


def test_bounded_is_right_after_an_append_and_extends(store: Any) -> None:
    BoundedSearch.build(store["train"])
    split = append(store)
    engine = BoundedSearch(split)
    assert (engine.covered, len(split)) == (ROWS, ROWS + MORE)
    assert_exact(split)
    assert [name for name, _ in remarks(split)] == ["bounded"]
    assert "covers 2,000 of 2,300 rows" in next(remarks(split))[1]
    names = ("first", "second", "factors", "directions")
    before = {name: getattr(engine.levels, name).clone() for name in names}
    done: list[int] = []
    extended = BoundedSearch.build(split, done.append)
    assert sum(done) == extended.covered == ROWS + MORE
    for name, part in before.items():
        np.testing.assert_array_equal(getattr(extended.levels, name)[: len(part)], part)
    fresh = actstore.open(store.path)["train"]
    assert_exact(fresh)
    assert not list(remarks(fresh))
    assert len(list(folder(fresh).glob("bounded.*.safetensors"))) == 1
    # codes of the new rows are those that a build of all rows with these directions would have made
    made = plan.encode_levels(extended.table.read(ROWS, ROWS + MORE), extended.levels)
    np.testing.assert_array_equal(extended.levels.first[ROWS:], made["first"])


def test_norms_are_measured_of_new_rows_alone(store: Any) -> None:
    ExactSearch(store["train"]).table.lengths()
    split = append(store)
    lengths = ExactSearch(split).table.lengths()
    np.testing.assert_allclose(lengths, np.linalg.norm(split[:].astype(np.float64), axis=1), rtol=1e-6)


@pytest.mark.parametrize("kind", INDEX_KINDS)
def test_approximate_is_right_after_an_append_and_extends(store: Any, kind: str) -> None:
    lists = None if kind == "hnsw" else 8
    build_index(store["train"], kind, dims=DIM, lists=lists, refine=64, recall=0.9).save()
    split = append(store)
    queries = split[ROWS:].astype(np.float32)
    assert (split.search(queries, 1, method=kind)[1][:, 0] >= ROWS).all()  # each new row finds itself: exactly
    engine = extend_index(ApproximateSearch.load(split, kind), recall=0.9)
    engine.save()
    assert engine.settings.queries == MORE // 2  # of new rows, before they were in
    assert engine.settings.recall >= (0.75 if kind == "pq" else 0.9)  # codes of 12 bytes, and near ties
    assert engine.index.ntotal == ROWS + MORE
    fresh = ApproximateSearch.load(actstore.open(store.path)["train"], kind)
    assert fresh.covered == ROWS + MORE
    np.testing.assert_array_equal(np.sort(fresh.order), np.arange(ROWS + MORE))
    assert (fresh.search(queries, 1)[1][:, 0] == np.arange(ROWS, ROWS + MORE)).mean() > 0.85
    again = append(store, 40, seed=9)
    twice = extend_index(ApproximateSearch.load(again, kind), queries=values_of(3, 50))
    assert twice.settings.queries == 50
    thrice = extend_index(ApproximateSearch.load(again, kind), recall=0.8)
    assert thrice.settings.queries == (ROWS + MORE + 40) // 10  # too few are new: rows that look for others
    assert 0.6 < thrice.settings.recall <= 1
    np.testing.assert_array_equal(np.sort(twice.order), np.arange(ROWS + MORE + 40))
    assert (twice.search(again[-40:].astype(np.float32), 1)[1][:, 0] >= ROWS + MORE).mean() > 0.8


@pytest.mark.parametrize("way", [shutil.copytree, shutil.move])
def test_moved_or_copied_together_it_still_works(store: Any, tmp_path: Path, way: Any) -> None:
    BoundedSearch.build(store["train"])
    build_index(store["train"], "ivf", dims=32, lists=8, recall=0.5).save()
    target = tmp_path / "elsewhere" / "y.zarr"
    target.parent.mkdir()
    way(store.path, target)
    way(f"{store.path}.search", f"{target}.search")
    split = actstore.open(target)["train"]
    assert BoundedSearch(split).prunes
    assert ApproximateSearch.load(split, "ivf").covered == ROWS
    assert_exact(split)


def test_other_rows_and_other_versions_are_named(store: Any, tmp_path: Path) -> None:
    BoundedSearch.build(store["train"])
    other = make(tmp_path / "z.zarr", 5)
    shutil.copytree(f"{store.path}.search", f"{other.path}.search")
    with pytest.raises(InvalidInputError, match=r"built for other rows .* --kind bounded"):
        other["train"].search(np.ones(DIM), 1, method="bounded")
    assert "built for other rows" in next(remarks(other["train"]))[1]
    assert_exact(other["train"], "auto")
    note = folder(store["train"]) / "bounded.json"
    document = json.loads(note.read_bytes())
    document = {key: value for key, value in document.items() if key not in ("version", "checksum")}
    note.write_text(json.dumps(with_checksum(document)))
    with pytest.raises(
        InvalidInputError, match=r"built by another version of actstore \(its format is 1, this one reads 3"
    ):
        find(store["train"], "bounded")
    assert_exact(store["train"])  # by all products
    assert "another version" in next(remarks(store["train"]))[1]
    BoundedSearch.build(store["train"])  # anew
    assert find(store["train"], "bounded") is not None
