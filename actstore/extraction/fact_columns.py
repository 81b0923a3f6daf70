"""What a build knows of its images beside their activations, as columns: width, height, bytes and date."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from actstore.images.decode import ImageFacts
from actstore.images.image_set import Loadable
from actstore.layout.columns import Column
from actstore.writing.column_checks import parse_column

NAMES = ("width", "height", "bytes", "date")


def columns_of(facts: Sequence[ImageFacts]) -> dict[str, Column]:
    whole = {name: [getattr(fact, name) for fact in facts] for name in NAMES[:3]}
    numbers = {name: parse_column(name, values, "int") for name, values in whole.items()}
    return {**numbers, "date": parse_column("date", [fact.date for fact in facts], "date")}


class FactColumns(Mapping[str, Column]):
    """The same columns of images that were built long ago; they are opened once a value is asked for."""

    def __init__(self, items: Sequence[Loadable]) -> None:
        self._items = items

    @cached_property
    def _read(self) -> dict[str, Column]:
        return columns_of([item.load_with_facts()[1] for item in self._items])

    def __getitem__(self, name: str) -> Column:
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)
