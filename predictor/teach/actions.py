"""What a session has learnt from, categories and their examples, and what a person can do to it, and undo: an action
changes a state, or refuses. The journal keeps them all."""

from __future__ import annotations

import json
import unicodedata
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from actstore.errors import DamagedError, InvalidInputError, LockedError
from actstore.images.image_set import printable
from actstore.storage.atomic_file import sync_directory
from actstore.storage.locks import LockedFile
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

    def apply(self, action: Action) -> None:
        """Change the state, or refuse before anything of it is changed."""
        name, keys = action.category, action.keys
        if missing := [key for key in keys if key not in self.places]:
            raise RefusalError(404, f"example {missing[0][:12]} is not there any more")
        if action.do in ("rename", "delete") and name not in self.categories:
            raise RefusalError(404, f"there is no category {name!r} any more")
        match action.do:
            case "add":
                self.add(name, {example.key: example for example in action.examples}.values())
            case "merge":
                for add in action.categories:
                    self.apply(add)
            case "create":
                if name in self.categories:
                    raise RefusalError(409, f"there is a category {name!r} already")
                self.add(name, ())
            case "move":
                wanted = set(keys)
                self.add(name, [example for _, example in self.examples() if example.key in wanted])
            case "remove":
                self.remove(keys)
            case "rename":
                if action.to in self.categories and action.to != name:
                    raise RefusalError(
                        409, f"there is a category {action.to!r} already; move the examples into it instead"
                    )
                self.places.update(dict.fromkeys(self.categories[name], action.to))
                self.categories = {action.to if one == name else one: mine for one, mine in self.categories.items()}
            case "delete":
                self.remove(list(self.categories[name]))
                del self.categories[name]

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
class Action:
    """do: one of FIELDS, which says what of the rest belongs to it. categories: of `merge`, an `add` for each."""

    do: str
    category: str = ""
    to: str = ""
    keys: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    categories: tuple[Action, ...] = ()

    @property
    def said(self) -> str:
        """What undo would undo."""
        brought = [*self.keys, *self.examples, *(one for add in self.categories for one in add.examples)]
        return SAID[self.do].format(counted(len(brought), "example"), self.category, self.to)

    def to_json(self) -> dict[str, Any]:
        written: dict[str, Callable[[Any], Any]] = {
            "keys": list, "examples": lambda examples: [example.to_json() for example in examples],
            "categories": lambda adds: [category_json(add.category, add.examples) for add in adds],
        }  # fmt: skip
        return {"do": self.do} | {name: written.get(name, str)(getattr(self, name)) for name in FIELDS[self.do]}


# what an action is called -> its fields, in the order of its JSON
FIELDS = {
    "add": ("category", "examples"),  # those of another category move; it is made where it is not there
    "merge": ("categories",),  # many at once, as an archive brings them
    "create": ("category",),
    "move": ("keys", "category"),
    "remove": ("keys",),  # the category stays, even where it has none left
    "rename": ("category", "to"),
    "delete": ("category",),
}
SAID = {  # {0}: examples, {1}: category, {2}: its new name
    "add": "{0} added to {1}", "merge": "{0} brought by a zip", "create": "new category {1}",
    "move": "{0} moved to {1}", "remove": "{0} removed", "rename": "{1} renamed to {2}",
    "delete": "category {1} removed",
}  # fmt: skip
ASKABLE = ("create", "move", "remove", "rename", "delete")  # what a page may send as JSON; the others bring images


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
            state.apply(action)
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


def parse_action(data: Any, known: Iterable[str] = FIELDS, name: Callable[[Any], str] = str) -> Action:
    """An action from its JSON; 422 with what was expected where it is none.

    name: how a category's name is read; those of a journal are as they were read before."""
    known = tuple(known)
    kind = data.get("do") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in known:
        raise RefusalError(422, f'expected an object whose "do" is one of {", ".join(known)}')
    read: dict[str, Callable[[Any], Any]] = {
        "category": name, "to": name, "keys": _keys, "examples": _examples,
        "categories": lambda adds: tuple(Action("add", name(add["name"]), examples=_examples(add["examples"]))
                                         for add in adds),
    }  # fmt: skip
    try:
        return Action(kind, **{field: read[field](data[field]) for field in FIELDS[kind]})
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


class Journal:
    """A file that only grows: a line per action, on disk before the action is answered. entries: what it held when it
    was opened. As long as it is open, no other process works in its folder.

    A line is the crc32 of its JSON as eight hex digits, a space and the JSON. A line without its end was being written
    when the process was killed and was never answered: it is cut off. Any other line that does not fit is damage, and
    refused.
    """

    def __init__(self, path: Path) -> None:
        is_new, self.path = not path.exists(), path
        try:
            self._file = LockedFile(path)
        except LockedError:
            raise LockedError(
                f"another `ppa teach` serves {path.parent}; use its page, end it, or choose another --session"
            ) from None
        try:
            if is_new:
                sync_directory(path.parent)
            whole, _, rest = path.read_bytes().rpartition(b"\n")
            if rest:
                self._file.truncate(self._file.size() - len(rest))
            lines = whole.split(b"\n") if whole else []
            self.entries = [self._parse(number, line) for number, line in enumerate(lines, 1)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def append_entry(self, entry: dict[str, Any]) -> None:
        """Durable when this returns; where the disk refuses, the file is as it was."""
        text = json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode()
        self._file.append(b"%08x %b\n" % (zlib.crc32(text), text))

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            if int(line[:8], 16) != zlib.crc32(line[9:]):
                raise ValueError("its checksum differs")
            entry = json.loads(line[9:])
            if not isinstance(entry, dict):
                raise ValueError("it is no action")
        except ValueError as error:
            raise DamagedError(
                f"{self.path}: line {number:,} is damaged ({error}); remove it and what follows to go on from there, "
                "or choose another --session"
            ) from None
        return entry
