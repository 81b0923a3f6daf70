"""What a person can do to a session: an action takes a state to the next, or refuses. Pure; the journal keeps them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from predictor.teach.refusal import RefusalError
from predictor.teach.state import Category, Example, State, parse_name


class Action(Protocol):
    @property
    def said(self) -> str:
        """What undo would undo."""
        ...

    def apply(self, state: State) -> State: ...
    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Add:
    """Examples of a category, which is made where it is not there; those of another category move."""

    category: str
    examples: tuple[Example, ...]

    @property
    def said(self) -> str:
        return f"{_count(len(self.examples))} added to {self.category}"

    def apply(self, state: State) -> State:
        mine = {example.key for example in state.names.get(self.category, Category("")).examples}
        fresh = tuple({one.key: one for one in self.examples if one.key not in mine}.values())
        return _with(_without(state, {one.key for one in fresh}), self.category, fresh)

    def to_json(self) -> dict[str, Any]:
        return {"do": "add", "category": self.category, "examples": [one.to_json() for one in self.examples]}


@dataclass(frozen=True)
class Merge:
    """Many categories at once, as an archive brings them."""

    categories: tuple[Category, ...]

    @property
    def said(self) -> str:
        return f"{_count(sum(len(one.examples) for one in self.categories))} brought by a zip"

    def apply(self, state: State) -> State:
        for category in self.categories:
            state = Add(category.name, category.examples).apply(state)
        return state

    def to_json(self) -> dict[str, Any]:
        return {"do": "merge", "categories": [one.to_json() for one in self.categories]}


@dataclass(frozen=True)
class Create:
    category: str

    @property
    def said(self) -> str:
        return f"new category {self.category}"

    def apply(self, state: State) -> State:
        if self.category in state.names:
            raise RefusalError(409, f"there is a category {self.category!r} already")
        return State((*state.categories, Category(self.category)))

    def to_json(self) -> dict[str, Any]:
        return {"do": "create", "category": self.category}


@dataclass(frozen=True)
class Move:
    keys: tuple[str, ...]
    category: str

    @property
    def said(self) -> str:
        return f"{_count(len(self.keys))} moved to {self.category}"

    def apply(self, state: State) -> State:
        state.require_keys(self.keys)
        wanted = set(self.keys)
        moved = tuple(one for category in state for one in category.examples if one.key in wanted)
        return Add(self.category, moved).apply(state)

    def to_json(self) -> dict[str, Any]:
        return {"do": "move", "keys": list(self.keys), "category": self.category}


@dataclass(frozen=True)
class Remove:
    """Examples; their category stays, even where it has none left."""

    keys: tuple[str, ...]

    @property
    def said(self) -> str:
        return f"{_count(len(self.keys))} removed"

    def apply(self, state: State) -> State:
        state.require_keys(self.keys)
        return _without(state, set(self.keys))

    def to_json(self) -> dict[str, Any]:
        return {"do": "remove", "keys": list(self.keys)}


@dataclass(frozen=True)
class Rename:
    category: str
    to: str

    @property
    def said(self) -> str:
        return f"{self.category} renamed to {self.to}"

    def apply(self, state: State) -> State:
        state.require(self.category)
        if self.to in state.names and self.to != self.category:
            raise RefusalError(409, f"there is a category {self.to!r} already; move the examples into it instead")
        return State(tuple(
            Category(self.to, one.examples) if one.name == self.category else one for one in state
        ))  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {"do": "rename", "category": self.category, "to": self.to}


@dataclass(frozen=True)
class Delete:
    category: str

    @property
    def said(self) -> str:
        return f"category {self.category} removed"

    def apply(self, state: State) -> State:
        state.require(self.category)
        return State(tuple(one for one in state if one.name != self.category))

    def to_json(self) -> dict[str, Any]:
        return {"do": "delete", "category": self.category}


_Name = Callable[[Any], str]
_READERS: dict[str, Callable[[Mapping[str, Any], _Name], Action]] = {
    "add": lambda data, name: Add(name(data["category"]), tuple(Example.from_json(one) for one in data["examples"])),
    "merge": lambda data, name: Merge(tuple(Category.from_json(one) for one in data["categories"])),
    "create": lambda data, name: Create(name(data["category"])),
    "move": lambda data, name: Move(_keys(data["keys"]), name(data["category"])),
    "remove": lambda data, name: Remove(_keys(data["keys"])),
    "rename": lambda data, name: Rename(name(data["category"]), name(data["to"])),
    "delete": lambda data, name: Delete(name(data["category"])),
}
ASKABLE = ("create", "move", "remove", "rename", "delete")  # what a page may send as JSON; the others bring images


def parse_action(data: Any, known: Iterable[str] = _READERS, names: Container[str] = ()) -> Action:
    """An action from its JSON; 422 with what was expected where it is none. names: see `parse_name`."""
    known = tuple(known)
    name = data.get("do") if isinstance(data, dict) else None
    if not isinstance(name, str) or name not in known:
        raise RefusalError(422, f'expected an object whose "do" is one of {", ".join(known)}')
    try:
        return _READERS[name](data, lambda given: parse_name(given, names))
    except KeyError as error:
        raise RefusalError(422, f"{name} needs {error.args[0]!r}") from None
    except (TypeError, AttributeError):
        raise RefusalError(422, f"{name}: a field is not of the expected kind") from None


def _keys(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not given or not all(isinstance(key, str) for key in given):
        raise RefusalError(422, 'expected "keys": a list of at least one example')
    return tuple(dict.fromkeys(given))


def _without(state: State, keys: set[str]) -> State:
    """Categories that lose nothing are the same objects as before."""
    if not keys & state.places.keys():
        return state
    return State(tuple(
        Category(one.name, tuple(example for example in one.examples if example.key not in keys))
        if any(example.key in keys for example in one.examples) else one
        for one in state
    ))  # fmt: skip


def _with(state: State, name: str, examples: tuple[Example, ...]) -> State:
    if name not in state.names:
        return State((*state.categories, Category(name, examples)))
    return State(tuple(
        Category(name, one.examples + examples) if one.name == name else one for one in state
    ))  # fmt: skip


def _count(number: int) -> str:
    return f"{number:,} example" + ("" if number == 1 else "s")
