"""Conditions -> which rows satisfy them, by the type of each column."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.filters.conditions import Condition, Literal, parse_where, refuse
from actstore.layout.columns import Column
from actstore.layout.texts import Texts

Mask = NDArray[np.bool_]
Lookup = Callable[[str], Column]  # of a name; raises MissingColumnError, which names those that are there
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_TRUTH = {"true": 1, "yes": 1, "1": 1, "false": 0, "no": 0, "0": 0}
_DATE = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?)?)?)?)?")
_EXPECTED_DATE = "expected a date such as 2024-05-31 or 2024-05-31T12:00"
_UNITS = ("Y", "M", "D", "h", "m", "s")


def matching_rows(where: str | Sequence[str], lookup: Lookup, count: int) -> Mask:
    """(count,) rows that satisfy every condition of every text.

    A row without a value satisfies `== none` alone, and whatever is negated: `!=` and `not in` hold wherever `==`
    and `in` do not.
    """
    keep = np.ones(count, bool)
    for text in [where] if isinstance(where, str) else where:
        for condition in parse_where(text):
            keep &= _holds(condition, lookup(condition.column), text)
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


def _equal(column: Column, value: Literal, text: str) -> Mask:
    if isinstance(column.stored, Texts):
        return column.stored.equal(value.text)
    if column.kind == "date":
        first, after = _dates(value, text)
        return (column.stored >= first) & (column.stored < after) & ~column.missing()
    mask: Mask = column.stored == _number(column, value, text)
    return mask & ~column.missing()


def _ordered(column: Column, name: str, value: Literal, text: str) -> Mask:
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


def _number(column: Column, value: Literal, text: str) -> int | float:
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


def _dates(value: Literal, text: str) -> tuple[int, int]:
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
