from __future__ import annotations

from copy import deepcopy
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import actstore
from actstore import statistics
from actstore.statistics import Moments, merge_moments, plan_spans, sum_rows, to_moments
from actstore.upkeep.copies import rechunk
from actstore.upkeep.verify import verify_store
from tests.store_files import files

pytestmark = pytest.mark.numeric


def reference(values: np.ndarray, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    wide = values.astype(np.float64)
    count = np.bincount(labels[labels >= 0], minlength=classes)
    mean = np.array([wide[labels == c].mean(0) if count[c] else np.full(wide.shape[1], np.nan) for c in range(classes)])
    var = np.array([wide[labels == c].var(0) if count[c] else np.full(wide.shape[1], np.nan) for c in range(classes)])
    return count, mean, var


def assert_right(split: Any) -> None:
    count, mean, variance = reference(split[:], split.labels, len(split.classes))
    found = split.statistics()
    np.testing.assert_array_equal(found.count, count)
    # sums of fp16 values run over 1,024 rows at most in float32: 1024 * 2**-24 in the worst order
    np.testing.assert_allclose(found.mean, mean, rtol=6e-5)
    np.testing.assert_allclose(found.variance, variance, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("sort", [True, False])
@pytest.mark.parametrize("options", [{}, {"codec": "blosc"}, {"dtype": "f4"}])
def test_statistics_equal_numpy(make_store: Any, sort: bool, options: dict[str, Any]) -> None:
    assert_right(make_store(rows=3000, sort=sort, **options)["train"])


def test_unlabelled_rows_and_empty_classes(tmp_path: Any, random: np.random.Generator) -> None:
    labels = random.integers(-1, 3, 500)
    values = random.random((500, 16))
    store = actstore.from_arrays(tmp_path / "x.zarr", {"train": (values, labels)}, classes=["a", "b", "c", "empty"])
    assert_right(store["train"])
    assert np.isnan(store["train"].means()[3]).all()
    nothing = actstore.from_arrays(tmp_path / "y.zarr", {"train": (values, None)}, classes=["a"])
    assert nothing["train"].statistics().count.tolist() == [0]


def test_a_small_spread_far_from_zero_survives(tmp_path: Any, random: np.random.Generator) -> None:
    """Sums of squares alone would lose this variance to rounding."""
    values = (1000 + 0.5 * random.standard_normal((4000, 8))).astype(np.float32)
    store = actstore.from_arrays(tmp_path / "x.zarr", {"train": (values, np.zeros(4000, int))}, dtype="f4")
    np.testing.assert_allclose(store["train"].statistics().variance[0], values.astype(float).var(0), rtol=1e-4)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    done: list[tuple[int, int]] = []
    original = statistics._sum_span

    def spy(split: Any, pivot: Any, span: Any, progress: Any = None) -> Any:
        done.append((span.start, span.stop))
        return original(split, pivot, span, progress)

    monkeypatch.setattr(statistics, "_sum_span", spy)
    return done


def test_cached_under_the_content_and_extended_on_append(make_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(rows=1000)
    store["train"].statistics()
    done = counted(monkeypatch)
    assert_right(store["train"])
    assert done == []
    store.add_classes(["new"])
    with store.writer("train") as writer:
        writer.append(np.full((150, 64), 2.0), ["new"] * 75 + ["3"] * 75, [f"n/{row}" for row in range(150)])
    assert_right(store["train"])
    assert min(done)[0] == 1000
    assert max(done)[1] == 1150


@pytest.mark.parametrize("name", ["class_count", "class_mean", "class_var"])
def test_a_damaged_or_foreign_cache_is_computed_anew(make_store: Any, name: str) -> None:
    store = make_store(rows=300)
    right = store["train"].statistics()
    chunk = next(file for file in (store.path / "train" / name / "c").rglob("*") if file.is_file())
    chunk.write_bytes(bytes([chunk.read_bytes()[0] ^ 1]) + chunk.read_bytes()[1:])
    np.testing.assert_array_equal(store["train"].statistics().mean, right.mean)
    metadata = store.path / "train" / name / "zarr.json"
    metadata.write_text(metadata.read_text().replace("sha256:", "sha256:0"))
    np.testing.assert_array_equal(store["train"].statistics().mean, right.mean)


@given(cut=st.integers(1, 199), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_moments_merge_as_if_they_were_one_set(cut: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.random((200, 5), dtype=np.float32)
    labels = random.integers(0, 4, 200)
    pivot = values[:10].mean(0)

    def moments(part: slice) -> Moments:
        return to_moments(
            sum_rows([torch.tensor(values[part], dtype=torch.float64)], labels[part], pivot, torch.float64), pivot
        )

    merged = merge_moments(moments(slice(0, cut)), moments(slice(cut, None)))
    whole = moments(slice(None))
    np.testing.assert_array_equal(merged.count, whole.count)
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(merged.m2, whole.m2, rtol=1e-10, atol=1e-12)


@given(first=st.integers(0, 500), more=st.integers(1, 500), chunk=st.integers(1, 60), seed=st.integers(0, 99))
def test_spans_cover_every_row_once_and_are_larger_than_their_sums(
    first: int, more: int, chunk: int, seed: int
) -> None:
    labels, dim = np.random.default_rng(seed).integers(-1, 4, first + more), 1 << 20  # 2 MiB a row
    *most, last = plan_spans(labels, first, chunk, dim, 2)
    assert [row for span in (*most, last) for row in range(span.start, span.stop)] == list(range(first, first + more))
    for span in (*most, last):
        assert span.classes == len(np.unique(labels[span.start : span.stop]))
        assert span is last or (span.stop % chunk == 0 and span.stop - span.start >= max(32, 64 * span.classes))


def test_means_do_not_depend_on_how_many_compute_them(make_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(rows=3000, chunk_rows=32)
    monkeypatch.setattr(statistics, "_LEAST_BYTES", 1)
    monkeypatch.setattr(statistics, "_RATIO", 0.1)
    assert len(list(plan_spans(store.labels, 0, 32, 64, 2))) > 20
    found = []
    for cores in (1, 2, 7):
        monkeypatch.setattr(statistics.os, "cpu_count", lambda cores=cores: cores)
        found.append(statistics._compute(store["train"], 0, None, None))
    for other in found[1:]:
        np.testing.assert_array_equal(other.mean, found[0].mean)
        np.testing.assert_array_equal(other.m2, found[0].m2)


def test_a_read_only_store_still_gives_means(make_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(rows=300)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("actstore.statistics.write_chunk", refuse)
    assert_right(store["train"])
    assert not (store.path / "train" / "class_mean").exists()


def test_large_fp32_values_and_a_class_far_from_the_others(tmp_path: Any, random: np.random.Generator) -> None:
    values = random.standard_normal((2000, 4))
    values[-200:] = 1000 + 0.1 * values[-200:]
    values[:, 3] *= 1e20
    labels = np.repeat(np.arange(10), 200)
    store = actstore.from_arrays(tmp_path / "x.zarr", {"train": (values, labels)}, dtype="f4")
    assert_right(store["train"])


def test_a_lost_chunk_of_the_cache_is_computed_anew(make_store: Any) -> None:
    import shutil

    store = make_store(rows=300)
    right = store["train"].means()
    shutil.rmtree(store.path / "train/class_mean/c")
    np.testing.assert_array_equal(store["train"].means(), right)


def test_metadata_of_statistics_goes_first_and_comes_last(make_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store, seen = make_store(rows=300), []

    def noting(work: Any) -> Any:
        def run(place: Any, *rest: Any) -> Any:
            array = next(part for part in (place, *place.parents) if part.name in statistics.NAMES)
            seen.append((work.__name__, (array / "zarr.json").exists()))
            return work(place, *rest)

        return run

    store["train"].means()
    with store.writer("train") as writer:
        writer.append(np.full((5, 64), 2.0), ["3"] * 5, [f"n/{row}" for row in range(5)])
    for work in ("write_chunk", "create_raw_array"):
        monkeypatch.setattr(statistics, work, noting(getattr(statistics, work)))
    actstore.open(store.path)["train"].means()
    assert seen == [("write_chunk", False), ("create_raw_array", False)] * len(statistics.NAMES)


STEPS = 3 * len(statistics.NAMES)  # for each array its metadata goes, its chunk is replaced, its metadata is written


def replaced_so_far(split: Path, before: dict[str, bytes], after: dict[str, bytes], steps: int) -> None:
    """Kept statistics as they are after so many steps of replacing those before by those after."""
    for place, name in enumerate(statistics.NAMES):
        done = min(3, max(0, steps - 3 * place))
        for file in (file for file in after if file.startswith(name)):
            is_metadata = file.endswith("zarr.json")
            if is_metadata and done in (1, 2):
                (split / file).unlink(missing_ok=True)
            else:
                (split / file).write_bytes((after if done >= (3 if is_metadata else 2) else before)[file])


def test_a_reader_beside_a_replacement_gets_the_right_ones(make_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it begins, and however far the replacement gets between two of its reads."""
    store = make_store(rows=300)
    old, path = store["train"], store.path / "train"
    right = {300: old.statistics()}
    before = {file: data for file, data in files(path).items() if file.startswith("class_")}
    with store.writer("train") as writer:
        writer.append(np.full((50, 64), 2.0), ["3"] * 50, [f"n/{row}" for row in range(50)])
    new = actstore.open(store.path)["train"]
    right[350] = new.statistics()
    after = {file: data for file, data in files(path).items() if file.startswith("class_")}
    assert before.keys() == after.keys()

    sums, compute = {}, statistics._compute
    for split, first in ((old, 0), (new, 0), (new, 300)):
        sums[len(split), first] = compute(split, first, None, None)
    monkeypatch.setattr(statistics, "_compute", lambda split, first, *_: deepcopy(sums[len(split), first]))
    monkeypatch.setattr(statistics, "_save", lambda *_: None)
    reads, kept = {"done": 0, "until": 0, "then": 0}, []

    def reading(read: Any, file: Any) -> Any:
        reads["done"] += 1
        if reads["done"] == reads["until"]:
            replaced_so_far(path, before, after, reads["then"])
        return read(file)

    for name in ("read_attributes", "read_one_chunk"):
        monkeypatch.setattr(statistics, name, partial(reading, getattr(statistics, name)))
    for split in (old, new):
        for start, stop, until in product(range(STEPS + 1), range(STEPS + 1), range(1, 10)):
            if start <= stop:
                replaced_so_far(path, before, after, start)
                reads.update(done=0, until=until, then=stop)
                found = split.statistics()
                kept.append(reads["done"] == 9)
                np.testing.assert_array_equal(found.count, right[len(split)].count)
                np.testing.assert_allclose(found.mean, right[len(split)].mean, rtol=6e-5)
                np.testing.assert_allclose(found.variance, right[len(split)].variance, rtol=1e-3, atol=1e-9)
    assert any(kept)


def test_of_two_who_keep_the_same_statistics_the_later_one_leaves_them(make_store: Any) -> None:
    store = make_store(rows=300)
    split = store["train"]
    statistics._save(split, found := split.statistics())
    metadata = store.path / "train/class_mean/zarr.json"
    before = metadata.stat().st_ino
    statistics._save(split, found)
    assert metadata.stat().st_ino == before


def test_those_that_a_kill_has_cut_short_are_none(make_store: Any) -> None:
    """Their metadata is removed first and written last: a chunk without it is no fault, and is written again."""
    store = make_store(rows=300)
    means, metadata = store["train"].means(), store.path / "train/class_mean/zarr.json"
    metadata.unlink()
    metadata.with_name("c").joinpath("0/0.part").write_bytes(b"half")
    assert verify_store(store) == []
    np.testing.assert_array_equal(store["train"].means(), means)
    assert metadata.exists()
    assert not list((store.path / "train").rglob("*.part"))


def test_statistics_of_fewer_rows_never_take_the_place_of_those_of_more(make_store: Any) -> None:
    """A reader that opened the split before an append, or before it was replaced, keeps nothing."""
    store = make_store()
    old = store["train"]
    with store.writer("train") as writer:
        writer.append(store.values[:50], store.labels[:50], [f"new{row}" for row in range(50)])
    new = actstore.open(store.path)["train"]
    new.statistics()
    old.statistics()
    assert statistics.has_statistics(new)
    rechunk(store.path, None, 512)
    new.statistics()
    assert not (store.path / "train/class_mean").exists()
