"""What a session has learnt from: categories and their examples. Pure, and shared between one state and the next."""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from actstore.images.image_set import printable
from predictor.classifier.category_names import is_reserved
from predictor.teach.limits import NAME_LENGTH
from predictor.teach.refusal import RefusalError


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


@dataclass(frozen=True)
class Category:
    name: str
    examples: tuple[Example, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "examples": [example.to_json() for example in self.examples]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(str(data["name"]), tuple(Example.from_json(one) for one in data["examples"]))


@dataclass(frozen=True)
class State:
    """An image is an example of one category at most, so its key names it."""

    categories: tuple[Category, ...] = field(default=())

    @cached_property
    def names(self) -> dict[str, Category]:
        return {category.name: category for category in self.categories}

    @cached_property
    def places(self) -> dict[str, str]:
        """Key -> the category it is an example of."""
        return {example.key: category.name for category in self.categories for example in category.examples}

    def forget_tables(self) -> None:
        """`names` and `places` are made again when they are asked for."""
        for table in ("names", "places"):
            self.__dict__.pop(table, None)

    def __iter__(self) -> Iterator[Category]:
        return iter(self.categories)

    def require(self, name: str) -> Category:
        if name not in self.names:
            raise RefusalError(404, f"there is no category {name!r} any more")
        return self.names[name]

    def require_keys(self, keys: tuple[str, ...]) -> None:
        if missing := [key for key in keys if key not in self.places]:
            raise RefusalError(404, f"example {missing[0][:12]} is not there any more")

    def to_json(self) -> list[dict[str, Any]]:
        return [category.to_json() for category in self.categories]


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
