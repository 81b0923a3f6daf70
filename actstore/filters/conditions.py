"""The text of a `where` -> its conditions; what does not parse is named with its place."""

from __future__ import annotations

import re
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

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words


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
        self._text, self._tokens = text, list(_tokens(text))
        self._next = 0

    def conditions(self) -> list[Condition]:
        conditions = [self._condition()]
        while self._peek().kind != "end":
            if not self._peek().is_word("and"):
                self._refuse("expected 'and' or the end")
            self._take()
            conditions.append(self._condition())
        return conditions

    def _condition(self) -> Condition:
        name = self._peek()
        if name.kind != "word" or name.is_word("and", "in", "not", "or"):
            self._refuse("expected the name of a column")
        self._take()
        negated = self._peek().is_word("not")
        if negated:
            self._take()
        if self._peek().is_word("in"):
            self._take()
            return Condition(name.text, "in", tuple(self._list()), negated, name.place)
        if self._peek().kind != "operator" or negated:
            self._refuse(f"expected {'in' if negated else 'one of ' + ' '.join(OPERATORS) + ' in'}")
        operator = self._take().text.replace("=", "==") if self._peek().text == "=" else self._take().text
        return Condition(name.text, operator, (self._value(),), False, name.place)

    def _list(self) -> Iterator[Literal]:
        self._expect("(")
        yield self._value()
        while self._peek().text == "," and self._peek().kind == "mark":
            self._take()
            yield self._value()
        self._expect(")")

    def _value(self) -> Literal:
        token = self._peek()
        if token.kind == "quoted":
            self._take()
            return Literal(re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL), True, token.place)
        if token.kind != "word":
            self._refuse("expected a value")
        self._take()
        return Literal(token.text, False, token.place)

    def _expect(self, mark: str) -> None:
        if self._peek().kind != "mark" or self._peek().text != mark:
            self._refuse(f"expected {mark!r}")
        self._take()

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _refuse(self, expected: str) -> NoReturn:
        token = self._peek()
        got = "its end" if token.kind == "end" else repr(token.text)
        refuse(self._text, token.place, f"{expected}, got {got}")


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
