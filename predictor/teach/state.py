"""What a session has learnt from: categories and their examples."""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from actstore.errors import InvalidInputError
from actstore.images.image_set import printable
from predictor.classifier.unknown import is_reserved

MB = 1 << 20
NAME_LENGTH = 80  # of a category, in characters


@dataclass(frozen=True)
class Limits:
    """Bytes, pixels, counts and seconds. decodes: images decoded at once, each of up to `pixels` (4 bytes of memory
    each, three times over where there is transparency). waiting: requests with a body that may wait for their turn."""

    image_bytes: int = 40 * MB
    json_bytes: int = 1 * MB
    archive_bytes: int = 1024 * MB
    unpacked_bytes: int = 2048 * MB
    pixels: int = 50_000_000
    examples: int = 5_000
    categories: int = 1_000
    decodes: int = 1
    bodies: int = 4
    waiting: int = 32
    body_seconds: float = 60.0
    connections: int = 64


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
