"""`where` against a plain reference, row by row in Python, and its words for what does not parse."""

from __future__ import annotations

import math
import operator
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actstore
from actstore.errors import InvalidInputError, MissingColumnError, UnknownValueError
from actstore.layout.columns import Column
from actstore.reading.query import matching_rows, parse_where
from actstore.writing.row_checks import parse_column

COMPARE = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
WORDS = st.text("abz0é語", max_size=3)
INTS = st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63) + 1, 2**53, 2**53 + 1, -(2**53) - 1])
FLOATS = st.floats(-3, 3, allow_subnormal=False) | st.integers(-3, 3).map(float) | st.just(math.inf)
DAYS = st.integers(0, 5000).map(lambda hours: np.datetime64("2023-12-01", "us") + np.timedelta64(hours, "h"))
KINDS: dict[str, Any] = {"int": INTS, "float": FLOATS, "text": WORDS, "date": DAYS, "bool": st.booleans()}


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def written(kind: str, value: Any) -> str:
    return quoted(value) if kind == "text" else str(value)


@st.composite
def cases(draw: Any) -> tuple[dict[str, Any], str, list[bool]]:
    """Columns, some conditions on them, and the rows that satisfy them one by one."""
    count = draw(st.integers(0, 8))
    columns, kinds = {}, {}
    for name in draw(st.lists(st.sampled_from(["a", "b", "größe"]), min_size=1, unique=True)):
        kinds[name] = draw(st.sampled_from(list(KINDS)))
        values = draw(st.lists(KINDS[kinds[name]] | st.none(), min_size=count, max_size=count))
        columns[name] = [None if value == "" else value for value in values]
    keep, texts = [True] * count, []
    for name in draw(st.lists(st.sampled_from(list(columns)), min_size=1, max_size=3)):
        kind, values = kinds[name], columns[name]
        if draw(st.booleans()):
            listed = draw(st.lists(KINDS[kind].filter(lambda value: value != ""), min_size=1, max_size=3))
            negated = draw(st.booleans())
            texts.append(f"{name} {'not ' if negated else ''}in ({', '.join(written(kind, one) for one in listed)})")
            holds = [(value is not None and value in listed) != negated for value in values]
        else:
            sign, one = draw(st.sampled_from(list(COMPARE))), draw(KINDS[kind].filter(lambda value: value != ""))
            texts.append(f"{name} {sign} {written(kind, one)}")
            # a whole date of six digits after the point is one moment
            holds = [sign == "!=" if value is None else bool(COMPARE[sign](value, one)) for value in values]
        keep = [a and b for a, b in zip(keep, holds, strict=True)]
    stored = {name: parse_column(name, values, kinds[name]) for name, values in columns.items()}
    return stored, " and ".join(texts), keep


@given(cases())
@settings(max_examples=400, deadline=None)
def test_the_rows_are_those_of_a_loop_over_them(case: tuple[dict[str, Column], str, list[bool]]) -> None:
    columns, where, expected = case
    count = len(expected)
    assert matching_rows(where, columns.__getitem__, count).tolist() == expected
    parts = where.split(" and ")
    assert matching_rows(parts, columns.__getitem__, count).tolist() == expected


@given(st.text(max_size=20) | st.text("ab<>=!'\"(), 01andi.", max_size=20))
@settings(max_examples=300, deadline=None)
def test_any_text_parses_or_is_refused_with_a_place_inside_of_it(text: str) -> None:
    try:
        assert parse_where(text)
    except InvalidInputError as error:
        place = int(re.search(r"at character (\d+)$", str(error))[1])  # type: ignore[index]
        assert 1 <= place <= len(text) + 1


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("", "expected the name of a column, got its end at character 1"),
        ("area", "expected one of == != <= >= < > in, got its end at character 5"),
        ("area >", "expected a value, got its end at character 7"),
        ("area > > 1", "expected a value, got '>' at character 8"),
        ("area > 1 or area < 2", "expected 'and' or the end, got 'or' at character 10"),
        ("area > 1 area < 2", "expected 'and' or the end, got 'area' at character 10"),
        ("area > 1 and", "expected the name of a column, got its end at character 13"),
        ("> 1", "expected the name of a column, got '>' at character 1"),
        ("area in 1, 2", "expected '(', got '1' at character 9"),
        ("area in (1, 2", "expected ')', got its end at character 14"),
        ("area in ()", "expected a value, got ')' at character 10"),
        ("area not > 1", "expected in, got '>' at character 10"),
        ("source == 'web", "a quotation that does not end at character 11"),
        ("area ! 1", "expected a word, got '!' at character 6"),
        ("area > big", "expected a number, got 'big' at character 8"),
        ("area > nan", "expected a number, got 'nan' at character 8"),
        ("area > none", "none can be compared with == and != alone, not with >, at character 8"),
        ("keep == maybe", "expected true or false, got 'maybe' at character 9"),
        (
            "date > 2024-13-01",
            "expected a date such as 2024-05-31 or 2024-05-31T12:00, got '2024-13-01' at",
        ),
        ("date == yesterday", "got 'yesterday' at character 9"),
        ("__import__('os')", "expected one of == != <= >= < > in, got '(' at character 11"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(where: str, said: str) -> None:
    columns = {
        "area": parse_column("area", [1.0, 2.0]), "source": parse_column("source", ["web", "x"]),
        "keep": parse_column("keep", [True, False]), "date": parse_column("date", np.array(["2024", "2025"], "M8[us]")),
    }  # fmt: skip
    with pytest.raises(InvalidInputError) as caught:
        matching_rows(where, columns.__getitem__, 2)
    assert said in str(caught.value)
    assert repr(where) in str(caught.value)


def test_a_class_that_is_not_there_is_a_mistake_and_no_empty_answer(make_store: Any) -> None:
    split = make_store(rows=60, classes=3)["train"]
    name = split.classes[1]
    assert split.query(where=f"class = {name}").tolist() == np.flatnonzero(split.labels == 1).tolist()
    assert len(split.query(where="class = none")) == 0
    for where in ("class = Bobolink", "class != Bobolink", f"row < 9 and class not in ({name}, Bobolink)"):
        with pytest.raises(InvalidInputError, match="'Bobolink'"):
            split.query(where=where)
    with pytest.raises(InvalidInputError, match="clas"):
        split.query(where=f"clas = {name}")


def test_a_text_that_no_row_has_is_a_mistake(make_store: Any, tmp_path: Path) -> None:
    split = make_store(rows=60, classes=3)["train"]
    rows, labels = split[:], split.labels
    columns = {"source": ["web", "print"] * 30, "area": list(range(60))}
    first, second = (rows, labels, None, columns), (rows, labels, None, columns | {"source": ["web"] * 60})
    store = actstore.from_arrays(tmp_path / "texts.zarr", {"a": first, "b": second})
    for where in ("source = wbe", "area > 5 and source in (web, scan)"):
        with pytest.raises(UnknownValueError, match=r"wbe|scan"):
            store["a"].query(where=where)
    assert len(store["a"].query(where="source != scan")) == 60
    assert len(store["a"].query(where="area = 99")) == 0
    printed = actstore.select(store.path, tmp_path / "y.zarr", where=["source = print"])
    assert {name: len(split) for name, split in printed.items()} == {"a": 30}  # though b has no such row
    with pytest.raises(UnknownValueError):
        actstore.select(store.path, tmp_path / "z.zarr", where=["source = scan"])


def test_a_date_of_less_than_a_moment_is_all_of_it() -> None:
    times = ["2023-12-31T23:59:59.9", "2024-05-01", "2024-05-31T23:00", "2024-06-01", "NaT"]
    column = parse_column("date", np.array(times, "M8[us]"))

    def found(where: str) -> list[int]:
        return np.flatnonzero(matching_rows(where, lambda _: column, 5)).tolist()

    assert found("date == 2024-05") == [1, 2]
    assert found("date > 2024-05") == [3]
    assert found("date >= 2024-05") == [1, 2, 3]
    assert found("date <= 2024-05") == [0, 1, 2]
    assert found("date < 2024") == [0]
    assert found("date == 2024") == [1, 2, 3]
    assert found("date in (2024-06-01, '2024-05-31T23:00')") == [2, 3]
    assert found("date == '2023-12-31 23:59:59.9'") == [0]
    assert found("date == none") == [4]
    assert found("date != none and date != 2024-05") == [0, 3]


def test_quotes_keep_words_apart_from_their_meaning() -> None:
    column = parse_column("said", ["none", None, "a and b", 'it\'s "so"', "(x, y)"])

    def found(where: str) -> list[int]:
        return np.flatnonzero(matching_rows(where, lambda _: column, 5)).tolist()

    assert found("said == none") == [1]
    assert found("said == 'none'") == [0]
    assert found("said = 'a and b'") == [2]
    assert found(r"""said == 'it\'s "so"'""") == [3]
    assert found('said in ("(x, y)", none)') == [1, 4]


def test_the_columns_that_every_split_has(make_store: Any) -> None:
    store = make_store()
    train = store["train"]
    labels = np.asarray(store.labels)
    np.testing.assert_array_equal(train.query(where="label >= 5"), np.flatnonzero(labels >= 5))
    np.testing.assert_array_equal(train.query(where="class in (3, 4)"), np.flatnonzero(np.isin(labels, [3, 4])))
    np.testing.assert_array_equal(train.query(where=["row < 100", "class != '0'"]), np.flatnonzero(labels[:100]))
    np.testing.assert_array_equal(train.query(where=f"id == {store.ids[17]}"), [17])
    np.testing.assert_array_equal(train.query([3], where="row >= 500"), 500 + np.flatnonzero(labels[500:] == 3))
    assert len(train.query(where=[])) == len(train)
    with pytest.raises(MissingColumnError, match="no column 'area'; it has: no columns"):
        train.query(where="area > 1")


def test_a_search_of_the_rows_that_a_condition_leaves(make_store: Any) -> None:
    train = make_store()["train"]
    rows = train.query(where="row >= 300 and class in (1, 2)")
    filtered = train.search(train[:4], k=5, where=["row >= 300", "class in (1, 2)"])
    for found, expected in zip(filtered, train.search(train[:4], k=5, rows=rows), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert np.isin(filtered[1], rows).all()


def test_letters_that_are_no_unicode_are_named(make_store: Any) -> None:
    train = make_store()["train"]
    for where in ("id == caf\udce9", "id in (x, 'caf\udce9')", "id < caf\udce9"):
        with pytest.raises(InvalidInputError, match=r"expected text in UTF-8, got '.udce9' at character"):
            train.query(where=where)
