"""Filters -> row numbers. The text of a `where` becomes conditions, what does not parse is named with its place;
columns are compared by their type."""

from __future__ import annotations

import fnmatch
import operator
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError, UnknownValueError, reason_of
from actstore.layout.columns import NONE, Column, Texts
from actstore.reading.rows import parse_rows
from actstore.storage.atomic_file import load_npy

if TYPE_CHECKING:
    from actstore.split import Split


OPERATORS = ("==", "!=", "<=", ">=", "<", ">")
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<operator>==|!=|<=|>=|<|>|=)
      | (?P<mark>[(),])
      | (?P<word>[^\s'"(),=!<>]+)
    )""",
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """A word as it was written; quoted, it is text whatever it looks like. place: of its first letter, from 1."""

    kind: str  # quoted, operator, mark, word or end
    text: str
    place: int

    @property
    def is_none(self) -> bool:
        return self.kind == "word" and self.text.lower() == "none"


@dataclass(frozen=True)
class Condition:
    """`column operator value`, or `column in values`; negated: everything but that."""

    column: str
    operator: str  # one of OPERATORS, or "in"
    values: tuple[Token, ...]
    negated: bool
    place: int


def parse_where(text: str) -> list[Condition]:
    """Every one of them must hold. Conditions stand between `and`; `or` has no meaning here, `in (a, b)` has."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # bytes of a shell in another encoding come as lone surrogates
        refuse(text, error.start + 1, f"expected text in UTF-8, got {text[error.start]!r}")
    return _Parser(text).conditions()


def refuse(text: str, place: int, said: str) -> NoReturn:
    raise InvalidInputError(f"where {text!r}: {said} at character {place}")


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._tokens = text, deque(_tokens(text))

    def conditions(self) -> list[Condition]:
        conditions = [self._condition()]
        while not self._accept("end"):
            self._require("word", "and", expected="'and' or the end")
            conditions.append(self._condition())
        return conditions

    def _condition(self) -> Condition:
        if self._tokens[0].text.lower() in ("and", "in", "not", "or"):
            self._refuse("the name of a column")
        name = self._require("word", expected="the name of a column")
        negated = self._accept("word", "not") is not None
        if self._accept("word", "in"):
            return Condition(name.text, "in", tuple(self._list()), negated, name.place)
        if negated:
            self._refuse("in")
        operator = self._require("operator", expected=f"one of {' '.join(OPERATORS)} in").text
        return Condition(name.text, "==" if operator == "=" else operator, (self._value(),), False, name.place)

    def _list(self) -> Iterator[Token]:
        self._require("mark", "(", expected="'('")
        yield self._value()
        while self._accept("mark", ","):
            yield self._value()
        self._require("mark", ")", expected="')'")

    def _value(self) -> Token:
        if quoted := self._accept("quoted"):
            return quoted._replace(text=re.sub(r"\\(.)", r"\1", quoted.text[1:-1], flags=re.DOTALL))
        return self._require("word", expected="a value")

    def _accept(self, kind: str, text: str | None = None) -> Token | None:
        """The next token, where it is of that kind and text."""
        token = self._tokens[0]
        if token.kind != kind or text not in (None, token.text.lower()):
            return None
        return self._tokens.popleft()

    def _require(self, kind: str, text: str | None = None, *, expected: str) -> Token:
        return self._accept(kind, text) or self._refuse(expected)

    def _refuse(self, expected: str) -> NoReturn:
        token = self._tokens[0]
        got = "its end" if token.kind == "end" else repr(token.text)
        refuse(self._text, token.place, f"expected {expected}, got {got}")


def _tokens(text: str) -> Iterator[Token]:
    place, end = 0, len(text.rstrip())
    while place < end:
        matched = _TOKEN.match(text, place)
        if matched is None:
            start = place + len(text[place:]) - len(text[place:].lstrip())
            said = "a quotation that does not end" if text[start] in "'\"" else f"expected a word, got {text[start]!r}"
            refuse(text, start + 1, said)
        kind = str(matched.lastgroup)
        yield Token(kind, matched[kind], matched.start(kind) + 1)
        place = matched.end()
    yield Token("end", "", end + 1)


Mask = NDArray[np.bool_]
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_TRUTH = {"true": 1, "yes": 1, "1": 1, "false": 0, "no": 0, "0": 0}
_DATE = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?)?)?)?)?")
_EXPECTED_DATE = "expected a date such as 2024-05-31 or 2024-05-31T12:00"
_UNITS = ("Y", "M", "D", "h", "m", "s")


def matching_rows(
    where: str | Sequence[str], lookup: Callable[[str], Column], count: int, split: Split | None = None
) -> Mask:
    """(count,) rows that satisfy every condition of every text. lookup: of a name; raises MissingColumnError.
    split: refuse texts that no row of it has.

    A row without a value satisfies `== none` alone, and whatever is negated: `!=` and `not in` hold wherever `==`
    and `in` do not.
    """
    keep = np.ones(count, bool)
    for text in [where] if isinstance(where, str) else where:
        for condition in parse_where(text):
            column = lookup(condition.column)
            if split is not None:
                require_known(condition, column, split, text)
            keep &= _holds(condition, column, text)
    return keep


def _holds(condition: Condition, column: Column, text: str) -> Mask:
    if condition.operator in _COMPARE:
        (value,) = condition.values
        if value.is_none:
            refuse(text, value.place, f"none can be compared with == and != alone, not with {condition.operator},")
        return _ordered(column, condition.operator, value, text)
    mask = np.zeros(len(column), bool)
    for value in condition.values:
        mask |= column.missing() if value.is_none else _equal(column, value, text)
    return ~mask if condition.negated or condition.operator == "!=" else mask


def _equal(column: Column, value: Token, text: str) -> Mask:
    if isinstance(column.stored, Texts):
        return column.stored.equal(value.text)
    if column.kind == "date":
        first, after = _dates(value, text)
        return (column.stored >= first) & (column.stored < after) & ~column.missing()
    mask: Mask = column.stored == _number(column, value, text)
    return mask & ~column.missing()


def _ordered(column: Column, name: str, value: Token, text: str) -> Mask:
    compare = _COMPARE[name]
    if isinstance(column.stored, Texts):
        mask: Mask = np.fromiter((compare(stored, value.text) for stored in column.stored), bool, len(column))
    elif column.kind == "date":  # "2024-05" is all of that month: later than it is after its end
        first, after = _dates(value, text)
        compare, bound = {"<": (operator.lt, first), "<=": (operator.lt, after), ">": (operator.ge, after),
                          ">=": (operator.ge, first)}[name]  # fmt: skip
        mask = compare(column.stored, bound)
    else:
        mask = compare(column.stored, _number(column, value, text))
    return mask & ~column.missing()


def _number(column: Column, value: Token, text: str) -> int | float:
    if column.kind == "bool":
        if value.text.lower() not in _TRUTH:
            refuse(text, value.place, f"expected true or false, got {value.text!r}")
        return _TRUTH[value.text.lower()]
    try:
        number = float(value.text)
        if number != number:
            raise ValueError("none is what stands for no value")
        is_whole = column.kind == "int" and number.is_integer()
        return int(value.text if value.text.lstrip("+-").isdecimal() else number) if is_whole else number  # exactly
    except ValueError:
        refuse(text, value.place, f"expected a number, got {value.text!r}")


def _dates(value: Token, text: str) -> tuple[int, int]:
    """[first, after) in microseconds of what a date of any precision stands for."""
    matched = _DATE.fullmatch(value.text)
    if matched is None:
        refuse(text, value.place, f"{_EXPECTED_DATE}, got {value.text!r}")
    parts = [part for part in matched.groups()[:6] if part is not None]
    unit, spelt = _UNITS[len(parts) - 1], value.text.replace(" ", "T")
    try:
        if matched[7] is not None:
            first = int(np.datetime64(spelt, "us").astype(np.int64))
            return first, first + 10 ** (6 - len(matched[7]))
        begin = np.array(spelt, f"M8[{unit}]")
    except ValueError:
        refuse(text, value.place, f"{_EXPECTED_DATE}, got {value.text!r}")
    return int(begin.astype("M8[us]").astype(np.int64)), int((begin + 1).astype("M8[us]").astype(np.int64))


def require_known(condition: Condition, column: Column, split: Split, text: str) -> None:
    """`class = tenhc` or `source = wbe` is a mistake, not a question that no row answers; a number may be in no row."""
    if condition.operator not in ("==", "!=", "in"):
        return
    for value in condition.values:
        if not value.text or value.is_none:
            continue
        if condition.column == "class":
            split.class_index.position(value.text)
        elif (
            condition.operator != "!=" and not condition.negated and isinstance(column.stored, Texts)
            and len(column) and not column.stored.equal(value.text).any()
        ):  # fmt: skip
            close = get_close_matches(value.text, set(column.stored), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            said = f"no row has {value.text!r} in the column {condition.column}{hint}"
            raise UnknownValueError(f"where {text!r}: {said}")


def column_of(split: Split, name: str) -> Column:
    """A column of the split, or what every split has by itself."""
    if name == "row":
        return Column("int", np.arange(len(split)))
    if name == "label":
        return Column("int", np.where(split.labels < 0, NONE["int"], split.labels.astype(np.int64)))
    if name == "class":
        numbers = split.labels.astype(np.int64) % (len(split.classes) + 1)  # -1 is the last: no class
        return Column("text", Texts.of([*split.classes, ""]).take(numbers))
    if name == "id":
        return Column("text", Texts.of(split.ids))
    return split.columns.stored(name)


def parse_row_filter(rows: Any, count: int) -> NDArray[np.int64]:
    if isinstance(rows, slice):
        return np.arange(*rows.indices(count))
    if isinstance(rows, str) and not rows:
        raise InvalidInputError("rows is empty; give a range such as 0:1000, or a file of row numbers")
    if isinstance(rows, str | PathLike):
        if ":" not in str(rows):
            return parse_rows(_read_row_file(Path(rows)), count)
        try:
            numbers = [int(part) if part else None for part in str(rows).split(":")]
            return np.arange(*slice(*numbers).indices(count))
        except (ValueError, TypeError):
            raise InvalidInputError(f"rows must look like 1000:2000 (or start:stop:step), got {str(rows)!r}") from None
    return parse_rows(rows, count)


def _read_row_file(path: Path) -> NDArray[Any]:
    if not path.exists():
        raise InvalidInputError(f"no such row file: {path}; give a file of row numbers, or a range such as 0:100")
    if path.suffix == ".npy":
        return load_npy(path, "an array of row numbers")
    try:
        return np.array(path.read_text("utf-8-sig").split(), int)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidInputError(f"{path} is not a list of row numbers: {reason_of(error)}") from error


def glob_rows(ids: Sequence[str], pattern: str) -> NDArray[np.int64]:
    """Rows whose id matches a shell pattern."""
    matches = re.compile(fnmatch.translate(pattern)).match
    return np.fromiter((row for row, name in enumerate(ids) if matches(name)), np.int64)
