"""Columns beside rows: every type, missing values, appends with and without them, kills at any step, buckets."""

from __future__ import annotations

import datetime
from contextlib import suppress
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actstore
from actstore.errors import InvalidInputError, MissingColumnError
from actstore.layout.columns import Column
from actstore.upkeep.verify import verify_store
from tests.actstore.writing.test_keeping import (
    BLOCKS,
    SOURCE,
    VALUES,
    Killed,
    files,
    killed_at,
    new_store,
    part,
)

random = np.random.default_rng(3)
AREA = np.where(np.arange(400) % 7, random.random(400), np.nan)
WIDTH = random.integers(-(2**62), 2**62, 400)
NOTE = np.array([("", "web", "größe\nzwei", "語" * (row % 5))[row % 4] for row in range(400)], dtype=object)
DATE = np.array([1_000_003 * row for row in range(400)], "M8[us]")
KEEP = np.arange(400) % 3 == 0
ALL = {"area": AREA, "width": WIDTH, "note": NOTE, "date": DATE, "keep": KEEP}


def columns(start: int, stop: int, names: tuple[str, ...] = tuple(ALL)) -> dict[str, Any]:
    return {name: ALL[name][start:stop] for name in names}


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


def test_every_type_comes_back(tmp_path: Path) -> None:
    store = new_store(tmp_path / "x.zarr")
    with store.writer("train") as writer:
        for start in range(0, 400, 50):
            writer.append(*part(start, start + 50), columns=columns(start, start + 50))
    train = actstore.open(store.path)["train"]
    assert list(train.columns) == list(ALL)
    for name, values in ALL.items():
        same(train.columns[name], values)
    assert verify_store(store) == []
    with pytest.raises(MissingColumnError, match="no column 'heigth'; it has: area, width, note, date, keep"):
        train.columns["heigth"]


def test_lists_become_what_they_hold(tmp_path: Path) -> None:
    store = new_store(tmp_path / "x.zarr")
    noon = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    given = {
        "whole": [1, None, 3], "real": [1, 0.5, None], "yes": [True, None, False], "said": ["a", None, ""],
        "day": [datetime.date(2024, 5, 1), None, noon],
    }  # fmt: skip
    with store.writer("train") as writer:
        writer.append(VALUES[:3], columns=given)
    found = store["train"].columns
    same(found["whole"], np.array([1, np.nan, 3]))
    same(found["real"], np.array([1, 0.5, np.nan]))
    same(found["yes"], np.array([1, np.nan, 0]))
    same(found["said"], np.array(["a", "", ""], dtype=object))
    same(found["day"], np.array(["2024-05-01", "NaT", "2024-05-01T10"], "M8[us]"))


@given(cuts=st.lists(st.integers(0, 119), max_size=3), given_names=st.lists(st.sets(st.sampled_from(list(ALL)))))
@settings(max_examples=25, deadline=None)
def test_rows_without_a_column_have_no_value_of_it(
    cuts: list[int], given_names: list[set[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Blocks, and appends, each with some of the columns, in any order of coming."""
    store, total = new_store(tmp_path_factory.mktemp("any") / "x.zarr", 32), 120
    bounds = [0, *sorted(cuts), total]
    expected = {name: [] for name in ALL}  # type: ignore[var-annotated]
    seen: set[str] = set()
    for number, (start, stop) in enumerate(pairwise(bounds)):
        names = given_names[number] if number < len(given_names) else set()
        if number % 2 == 0:
            writer = store.writer("train", source={"path": str(number)})
        writer.append(*part(start, stop), columns=columns(start, stop, tuple(names)))
        if number % 2 == 1 or stop == total:
            with suppress(InvalidInputError):
                writer.commit()
        seen |= names if stop > start else set()
        for name in ALL:
            kind = {"area": "float", "width": "int", "note": "text", "date": "date", "keep": "bool"}[name]
            nothing = Column.nothing(kind, stop - start).values()  # type: ignore[arg-type]
            expected[name].append(ALL[name][start:stop] if name in names else nothing)
    train = store["train"]
    assert set(train.columns) == seen
    for name in seen:
        np.testing.assert_array_equal(train.columns[name], np.concatenate(expected[name]))
    assert verify_store(store) == []


@given(
    blocks=BLOCKS,
    kills=st.lists(st.integers(1, 60), max_size=4),
    total=st.integers(0, 90),
    more=st.integers(0, 60),
    chunk=st.sampled_from([7, 32, 300]),
)
@settings(max_examples=20, deadline=None)
def test_killed_at_any_step_the_resumed_store_is_byte_identical(
    blocks: list[int], kills: list[int], total: int, more: int, chunk: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, patch = tmp_path_factory.mktemp("any"), pytest.MonkeyPatch()
    whole, killed = (new_store(folder / name, chunk) for name in ("whole.zarr", "killed.zarr"))
    steps: list[tuple[int, Any, tuple[str, ...]]] = [
        (total, SOURCE, ("area", "note")),
        (total + more, {"path": "more"}, ("note", "width", "keep")),  # lacks one, brings two
    ]

    def write(writer: Any, end: int, names: tuple[str, ...]) -> None:
        sizes = iter([*blocks] * (end + 1))
        while writer.position < end:
            if (size := next(sizes)) < 0:
                writer.flush()
            else:
                start, stop = writer.position, min(writer.position + size, end)
                writer.append(*part(start, stop), columns=columns(start, stop, names))

    for end, source, names in steps:
        with whole.writer("train", source=source) as writer:
            writer.append(*part(writer.position, end), columns=columns(writer.position, end, names))
        for step in kills:
            with killed_at(step, patch), suppress(Killed), killed.writer("train", source=source) as writer:
                write(writer, end, names)
        if "train" not in killed or not killed.splits["train"].complete or killed.splits["train"].rows < end:
            with killed.writer("train", source=source) as writer:
                write(writer, end, names)
        killed.remove_leftovers("train")
    assert files(killed.path) == files(whole.path)
    assert verify_store(killed) == []


@pytest.mark.usefixtures("overtaking")
def test_in_a_bucket(place: str) -> None:
    store = new_store(place)
    writer = store.writer("train", source=SOURCE)
    writer.append(*part(0, 150), columns=columns(0, 150))
    writer.flush()
    again = store.writer("train", source=SOURCE)  # the first was killed
    assert again.position == 150
    again.append(*part(150, 300), columns=columns(150, 300))
    again.commit()
    with store.writer("train", source={"path": "more"}) as more:
        more.append(*part(300, 400), columns=columns(300, 400, ("note",)) | {"new": np.arange(100)})
    found = store["train"].columns
    same(found["note"], NOTE)
    same(found["area"], np.concatenate([AREA[:300], np.full(100, np.nan)]))
    same(found["new"], np.concatenate([np.full(300, np.nan), np.arange(100.0)]))
    assert verify_store(store) == []


def test_restart_forgets_the_columns_of_what_was_interrupted(tmp_path: Path) -> None:
    store, fresh = new_store(tmp_path / "x.zarr"), new_store(tmp_path / "fresh.zarr")
    patch = pytest.MonkeyPatch()
    from actstore.writing import split_writer

    with patch.context() as inner:
        inner.setattr(split_writer.SplitWriter, "close", lambda self: self._ledger.close())

        def failing(*arguments: Any, **named: Any) -> None:
            from actstore.writing.commit import write_facts

            write_facts(arguments[0], arguments[2], [arguments[4].read(0)], lambda: None)
            raise Killed

        inner.setattr(split_writer, "commit", failing)  # arrays are written, the metadata is not
        writer = store.writer("train", source=SOURCE)
        writer.append(*part(0, 64), columns=columns(0, 64, ("area", "note")))
        with suppress(Killed):
            writer.commit()
        writer._stop_timer()
        writer._chunks.close()
        writer._ledger.close()
    assert (store.path / "train/area").exists()
    for target in (store, fresh):
        with target.writer("train", source=SOURCE, restart=target is store) as writer:
            writer.append(*part(0, 70), columns=columns(0, 70, ("width",)))
    assert list(store["train"].columns) == ["width"]
    assert files(store.path) == files(fresh.path)


@pytest.mark.parametrize(
    ("given_columns", "said"),
    [
        ({"area": [1.0]}, r"expected 3 values of column 'area', one per row, got 1"),
        ({"area": ["a", "b", "c"]}, r"column 'area' of split 'train' holds float values, got text"),
        ({"width": [1.5, 2, 3]}, r"column 'width' of split 'train' holds int values, got float"),
        ({"new": [1, "a", 2]}, r"column 'new' holds values of type int, str; expected numbers, truth values, dates"),
        ({"new": [None] * 3}, r"column 'new' has no value at all"),
        ({"new": [True, 1, None]}, r"column 'new' holds values of type bool, int; expected"),
        ({"new": [1.5, False, 2]}, r"column 'new' holds values of type bool, float, int; expected"),
        ({"new": [b"a", b"b", None]}, r"column 'new' holds values of type bytes; expected"),
        ({"new": [Decimal("1.5"), 1, 2]}, r"column 'new' holds values of type Decimal, int; expected"),
        ({"new": np.zeros((3, 2))}, r"column 'new' must have one value per row, got shape \(3, 2\)"),
        ({"new": np.zeros(3, complex)}, r"column 'new' is of type complex128"),
        ({"new": [2**63, 1, 2]}, r"column 'new' holds a whole number beyond 64 bits"),
        ({"new": np.array([2**63, 1, 2], np.uint64)}, r"column 'new' holds a whole number beyond 64 bits"),
        ({"new": ["a\0", "b", "c"]}, r"column 'new' of row 0 must be text without zero bytes"),
        ({"new": ["\ud800", "b", "c"]}, r"not valid Unicode"),
        ({"a b": [1, 2, 3]}, r"column name 'a b' must be 1-64 letters, digits or '_'"),
        ({"labels": [1, 2, 3]}, r"column name 'labels' means something else already; rename it"),
        ({"Area": [1, 2, 3]}, r"column 'Area' differs from 'area' in case alone"),
    ],
)
def test_what_is_refused_changes_nothing(tmp_path: Path, given_columns: Any, said: str) -> None:
    store = new_store(tmp_path / "x.zarr")
    with store.writer("train") as writer:
        writer.append(*part(0, 10), columns=columns(0, 10))
        with pytest.raises(InvalidInputError, match=said):
            writer.append(*part(10, 13), columns=given_columns)
        assert writer.position == 10
    assert list(store["train"].columns) == list(ALL)


def test_whole_numbers_fit_a_column_of_others_and_nothing_fits_any(tmp_path: Path) -> None:
    store = new_store(tmp_path / "x.zarr")
    with store.writer("train") as writer:
        writer.append(*part(0, 2), columns=columns(0, 2))
        writer.append(*part(2, 4), columns={name: [None, None] for name in ALL} | {"area": [1, 2]})
    found = store["train"].columns
    same(found["area"], np.array([*AREA[:2], 1, 2]))
    assert np.isnat(found["date"][2:]).all()


def test_dates_of_several_kinds_keep_their_hours(tmp_path: Path) -> None:
    """arrow, asked for a type, would take only the days of a date and a time, and refuse units beside each other."""
    two_hours = datetime.timezone(datetime.timedelta(hours=2))
    given = {
        "mixed": [datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 1, 5), None],
        "zones": [datetime.datetime(2024, 1, 1, 5), datetime.datetime(2024, 1, 1, 5, tzinfo=two_hours), None],
        "units": [np.datetime64("2024-01-01"), np.datetime64("2024-01-01T05:00:00.123456789"), np.datetime64("NaT")],
        "large": [2**60 + 1, 0.5, float("nan")],
    }
    store = new_store(tmp_path / "x.zarr")
    with store.writer("train") as writer:
        writer.append(*part(0, 3), columns=given)
    found = store["train"].columns
    same(found["mixed"], np.array(["2024-01-01", "2024-01-01T05", "NaT"], "M8[us]"))
    same(found["zones"], np.array(["2024-01-01T05", "2024-01-01T03", "NaT"], "M8[us]"))
    same(found["units"], np.array(["2024-01-01", "2024-01-01T05:00:00.123456", "NaT"], "M8[us]"))
    same(found["large"], np.array([2.0**60, 0.5, np.nan]))


def test_content_names_columns_whatever_their_order(tmp_path: Path) -> None:
    contents = []
    for number, names in enumerate([("area", "note"), ("note", "area"), ("area",), ()]):
        store = new_store(tmp_path / f"{number}.zarr")
        with store.writer("train") as writer:
            writer.append(*part(0, 10), columns=columns(0, 10, names))
        contents.append(store["train"].content)
    assert contents[0] == contents[1]
    assert len(set(contents)) == 3
