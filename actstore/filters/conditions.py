"""The text of a `where` -> its conditions; what does not parse is named with its place."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from actstore.errors import InvalidInputError

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


@dataclass(frozen=True)
class Literal:
    """A value as it was written; quoted, it is text whatever it looks like. place: of its first letter, from 1."""

    text: str
    quoted: bool
    place: int

    @property
    def is_none(self) -> bool:
        return not self.quoted and self.text.lower() == "none"


@dataclass(frozen=True)
class Condition:
    """`column operator value`, or `column in values`; negated: everything but that."""

    column: str
    operator: str  # one of OPERATORS, or "in"
    values: tuple[Literal, ...]
    negated: bool
    place: int


@dataclass(frozen=True)
class _Token:
    kind: str  # quoted, operator, mark, word or end
    text: str
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

    def _list(self) -> Iterator[Literal]:
        self._require("mark", "(", expected="'('")
        yield self._value()
        while self._accept("mark", ","):
            yield self._value()
        self._require("mark", ")", expected="')'")

    def _value(self) -> Literal:
        if token := self._accept("quoted"):
            return Literal(re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL), True, token.place)
        token = self._require("word", expected="a value")
        return Literal(token.text, False, token.place)

    def _accept(self, kind: str, text: str | None = None) -> _Token | None:
        """The next token, where it is of that kind and text."""
        token = self._tokens[0]
        if token.kind != kind or text not in (None, token.text.lower()):
            return None
        return self._tokens.popleft()

    def _require(self, kind: str, text: str | None = None, *, expected: str) -> _Token:
        return self._accept(kind, text) or self._refuse(expected)

    def _refuse(self, expected: str) -> NoReturn:
        token = self._tokens[0]
        got = "its end" if token.kind == "end" else repr(token.text)
        refuse(self._text, token.place, f"expected {expected}, got {got}")


def _tokens(text: str) -> Iterator[_Token]:
    place, end = 0, len(text.rstrip())
    while place < end:
        matched = _TOKEN.match(text, place)
        if matched is None:
            start = place + len(text[place:]) - len(text[place:].lstrip())
            said = "a quotation that does not end" if text[start] in "'\"" else f"expected a word, got {text[start]!r}"
            refuse(text, start + 1, said)
        kind = str(matched.lastgroup)
        yield _Token(kind, matched[kind], matched.start(kind) + 1)
        place = matched.end()
    yield _Token("end", "", end + 1)
