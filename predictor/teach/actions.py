"""What a session has learnt from, categories and their examples, and what a person can do to it, and undo: an action
changes a state, or refuses. The journal keeps them all."""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Self

from actstore.errors import InvalidInputError
from actstore.images.image_set import printable
from predictor.classifier.presentation import counted
from predictor.classifier.unknown import is_reserved

NAME_LENGTH = 80  # of a category, in characters


class RefusalError(InvalidInputError):
    """A request that is not granted: one sentence for the person; status: of HTTP, 4xx, for the browser."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Example:
    """key: sha256 of the image's bytes. name: of the file it came in, for people only. has_image: whether there is one;
    examples of a classifier file are activations alone."""

    key: str
    name: str
    has_image: bool = True

    def to_json(self) -> dict[str, Any]:
        return {"key": self.key, "name": self.name, "image": self.has_image}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(str(data["key"]), str(data["name"]), bool(data["image"]))


@dataclass
class State:
    """categories: name -> its examples by their key, all in the order in which they came. places: key -> the category
    it is an example of; an image is an example of one at most. Nothing changes a state once a session has it."""

    categories: dict[str, dict[str, Example]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def copy(self) -> State:
        return State({name: dict(examples) for name, examples in self.categories.items()}, dict(self.places))

    def add(self, name: str, examples: Iterable[Example]) -> None:
        """To a category, which is made where it is not there; those of another category move."""
        mine = self.categories.setdefault(name, {})
        for example in examples:
            before = self.places.get(example.key)
            if before != name:
                if before is not None:
                    del self.categories[before][example.key]
                mine[example.key], self.places[example.key] = example, name

    def remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            if (name := self.places.pop(key, None)) is not None:
                del self.categories[name][key]

    def require(self, name: str) -> None:
        if name not in self.categories:
            raise RefusalError(404, f"there is no category {name!r} any more")

    def require_keys(self, keys: Iterable[str]) -> None:
        if missing := [key for key in keys if key not in self.places]:
            raise RefusalError(404, f"example {missing[0][:12]} is not there any more")

    def examples(self) -> Iterator[tuple[str, Example]]:
        """Each with the name of its category, in the order of the categories."""
        for name, examples in self.categories.items():
            for example in examples.values():
                yield name, example

    def to_json(self) -> list[dict[str, Any]]:
        return [category_json(name, examples.values()) for name, examples in self.categories.items()]


def category_json(name: str, examples: Iterable[Example]) -> dict[str, Any]:
    return {"name": name, "examples": [example.to_json() for example in examples]}


def parse_name(given: Any, known: Container[str] = ()) -> str:
    """A category's name as it is kept: one Unicode spelling, no control characters, no spaces around it.

    known: names of a session, taken as they are: those of the classifier it began with follow no rule."""
    if not isinstance(given, str):
        raise RefusalError(422, f"a category's name must be text, got {type(given).__name__}")
    if given in known:
        return given
    name = " ".join(unicodedata.normalize("NFC", given).split())
    if not name:
        raise RefusalError(422, "a category needs a name")
    if len(name) > NAME_LENGTH:
        raise RefusalError(422, f"a category's name has at most {NAME_LENGTH} characters, got {len(name):,}")
    if not name.isprintable():
        raise RefusalError(422, f"a category's name must be printable, got {printable(name)}")
    if is_reserved(name):
        raise RefusalError(409, f"{name!r} is what is said where no category fits; choose another name")
    return name


@dataclass(frozen=True)
class Action(ABC):
    """Its fields are those of its JSON."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def said(self) -> str:
        """What undo would undo."""

    @abstractmethod
    def apply(self, state: State) -> None:
        """Change the state, or refuse before anything of it is changed."""

    def to_json(self) -> dict[str, Any]:
        return {"do": self.kind} | {member.name: _to_json(getattr(self, member.name)) for member in fields(self)}


@dataclass(frozen=True)
class Add(Action):
    """Examples of a category, which is made where it is not there; those of another category move."""

    kind = "add"
    category: str
    examples: tuple[Example, ...]

    @property
    def said(self) -> str:
        return f"{counted(len(self.examples), 'example')} added to {self.category}"

    def apply(self, state: State) -> None:
        state.add(self.category, {example.key: example for example in self.examples}.values())


@dataclass(frozen=True)
class Merge(Action):
    """Many categories at once, as an archive brings them."""

    kind = "merge"
    categories: tuple[Add, ...]

    @property
    def said(self) -> str:
        return f"{counted(sum(len(add.examples) for add in self.categories), 'example')} brought by a zip"

    def apply(self, state: State) -> None:
        for add in self.categories:
            add.apply(state)

    def to_json(self) -> dict[str, Any]:
        return {"do": self.kind, "categories": [category_json(add.category, add.examples) for add in self.categories]}


@dataclass(frozen=True)
class Create(Action):
    kind = "create"
    category: str

    @property
    def said(self) -> str:
        return f"new category {self.category}"

    def apply(self, state: State) -> None:
        if self.category in state.categories:
            raise RefusalError(409, f"there is a category {self.category!r} already")
        state.add(self.category, ())


@dataclass(frozen=True)
class Move(Action):
    kind = "move"
    keys: tuple[str, ...]
    category: str

    @property
    def said(self) -> str:
        return f"{counted(len(self.keys), 'example')} moved to {self.category}"

    def apply(self, state: State) -> None:
        state.require_keys(self.keys)
        wanted = set(self.keys)
        state.add(self.category, [example for _, example in state.examples() if example.key in wanted])


@dataclass(frozen=True)
class Remove(Action):
    """Examples; their category stays, even where it has none left."""

    kind = "remove"
    keys: tuple[str, ...]

    @property
    def said(self) -> str:
        return f"{counted(len(self.keys), 'example')} removed"

    def apply(self, state: State) -> None:
        state.require_keys(self.keys)
        state.remove(self.keys)


@dataclass(frozen=True)
class Rename(Action):
    kind = "rename"
    category: str
    to: str

    @property
    def said(self) -> str:
        return f"{self.category} renamed to {self.to}"

    def apply(self, state: State) -> None:
        state.require(self.category)
        if self.to in state.categories and self.to != self.category:
            raise RefusalError(409, f"there is a category {self.to!r} already; move the examples into it instead")
        state.places.update(dict.fromkeys(state.categories[self.category], self.to))
        state.categories = {
            self.to if name == self.category else name: examples for name, examples in state.categories.items()
        }


@dataclass(frozen=True)
class Delete(Action):
    kind = "delete"
    category: str

    @property
    def said(self) -> str:
        return f"category {self.category} removed"

    def apply(self, state: State) -> None:
        state.require(self.category)
        state.remove(list(state.categories[self.category]))
        del state.categories[self.category]


@dataclass(frozen=True)
class History:
    """done, undone: what was done since the first state, and what of it was taken back, the newest last.

    before_last: the state before the newest of `done`, where it is at hand. No other is kept: to undo is to do all the
    others again, 10 ms for 5,000 actions, whose states, each with a table of all examples, would take 100 MB.
    """

    first: State = field(default_factory=State)
    done: tuple[Action, ...] = ()
    undone: tuple[Action, ...] = ()
    before_last: State | None = field(default=None, compare=False)

    @cached_property
    def state(self) -> State:
        """Refuses where an action does not follow from those before it."""
        state = (self.before_last or self.first).copy()
        for action in self.done if self.before_last is None else self.done[-1:]:
            action.apply(state)
        return state

    def act(self, action: Action) -> History:
        return History(self.first, (*self.done, action), (), self.__dict__.get("state"))

    def undo(self) -> History:
        if not self.done:
            raise RefusalError(409, "there is nothing to undo")
        return History(self.first, self.done[:-1], (*self.undone, self.done[-1]))

    def redo(self) -> History:
        if not self.undone:
            raise RefusalError(409, "there is nothing to redo")
        return History(self.first, (*self.done, self.undone[-1]), self.undone[:-1], self.__dict__.get("state"))

    @property
    def next_undo(self) -> str | None:
        return self.done[-1].said if self.done else None

    @property
    def next_redo(self) -> str | None:
        return self.undone[-1].said if self.undone else None


_KINDS: dict[str, type[Action]] = {
    action.kind: action for action in (Add, Merge, Create, Move, Remove, Rename, Delete)
}  # fmt: skip
ASKABLE = ("create", "move", "remove", "rename", "delete")  # what a page may send as JSON; the others bring images


def parse_action(data: Any, known: Iterable[str] = _KINDS, name: Callable[[Any], str] = str) -> Action:
    """An action from its JSON; 422 with what was expected where it is none.

    name: how a category's name is read; those of a journal are as they were read before."""
    known = tuple(known)
    kind = data.get("do") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in known:
        raise RefusalError(422, f'expected an object whose "do" is one of {", ".join(known)}')
    read: dict[str, Callable[[Any], Any]] = {
        "category": name, "to": name, "keys": _keys, "examples": _examples,
        "categories": lambda adds: tuple(Add(name(add["name"]), _examples(add["examples"])) for add in adds),
    }  # fmt: skip
    action = _KINDS[kind]
    try:
        return action(**{field.name: read[field.name](data[field.name]) for field in fields(action)})
    except KeyError as error:
        raise RefusalError(422, f"{kind} needs {error.args[0]!r}") from None
    except (TypeError, AttributeError):
        raise RefusalError(422, f"{kind}: a field is not of the expected kind") from None


def _examples(listed: Any) -> tuple[Example, ...]:
    return tuple(Example.from_json(example) for example in listed)


def _keys(listed: Any) -> tuple[str, ...]:
    if not isinstance(listed, list) or not listed or not all(isinstance(key, str) for key in listed):
        raise RefusalError(422, 'expected "keys": a list of at least one example')
    return tuple(dict.fromkeys(listed))


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(part) for part in value]
    return value.to_json() if isinstance(value, Example) else value
