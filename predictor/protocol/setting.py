"""What a measurement is about: a store's rows, the categories, the methods; found and checked once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import actstore
from actstore import ActivationStore, Split
from actstore.errors import InvalidInputError
from actstore.progress import note
from actstore.statistics.class_statistics import has_statistics
from actstore.storage.place import Place
from predictor.protocol.category_split import CategorySplit, alphabetical_split, read_split
from predictor.protocol.method import Aggregate, MakesMethod, Method

SHOTS = (1, 2, 3, 5)  # 1, 2 and 3 are the paper's, 1 and 5 what most others report
Source = ActivationStore | Place | str | Path
Categories = CategorySplit | str | Path | None


def open_store(store: Source) -> ActivationStore:
    return store if isinstance(store, ActivationStore) else actstore.open(store)


def choose_categories(given: Categories, methods: Sequence[MakesMethod], store: ActivationStore) -> CategorySplit:
    """As given, or read from a file; else those that a method was trained with; else the alphabetical 90%."""
    if given is None:
        trained = [categories for one in methods if (categories := getattr(one, "categories", None)) is not None]
        return trained[0] if trained else alphabetical_split(store.classes)
    split = given if isinstance(given, CategorySplit) else read_split(Path(given))
    split.require_known(store.classes, ("base", "novel"))
    return split


def make_methods(
    given: Sequence[MakesMethod] | MakesMethod, train: Split, categories: CategorySplit, aggregate: Aggregate | None
) -> list[Method]:
    listed = list(given) if isinstance(given, list | tuple) else [given]
    methods = [_as_method(one, aggregate) for one in listed]
    if not methods:
        raise InvalidInputError("nothing to measure: give a trained phi, a baseline or a method of your own")
    for method in methods:
        method.check(train, categories)
    return methods


def _as_method(given: Any, aggregate: Aggregate | None) -> Method:
    """Of a class one is made, as the command line does."""
    if isinstance(given, str):
        raise InvalidInputError(f"{given!r} is a name: baselines.make({given!r}) makes the methods of this name")
    made = given() if isinstance(given, type) and issubclass(given, Method) else given
    if not hasattr(made, "as_method"):
        raise InvalidInputError(f"a method derives from predictor.Method, got {type(made).__name__}")
    method: Method = made.as_method(aggregate)
    return method


def find_test_split(store: ActivationStore, train: str, named: str | None) -> Split | None:
    """The split to test on: the one named, else val or test where the store has one."""
    if named is not None:
        return store[named]
    return next((store[name] for name in ("val", "test") if name in store.splits and name != train), None)


def require_test_split(store: ActivationStore, train: str, named: str | None) -> Split:
    test = find_test_split(store, train, named)
    if test is None:
        others = [name for name in store.splits if name != train]
        choice = f"; choose another with --test-split: {', '.join(others)}" if others else ""
        raise InvalidInputError(
            f"{store.path} has no split val or test to take test images from; it has {train}{choice}. "
            f"`actstore build FOLDER {store.path}` adds the images of FOLDER/val/CATEGORY, and "
            f"`actstore import FILE {store.path} --split val` rows of a file"
        )
    return test


def choose_shots(
    asked: Sequence[int] | int | None, split: Split, names: Sequence[str], spare: int = 0, shown: bool | None = None
) -> list[int]:
    """As asked for; by default those of SHOTS that every one of these categories has rows for, and `spare` more."""
    if asked is not None:
        numbers = sorted({asked} if isinstance(asked, int) else set(asked))
        if not numbers or numbers[0] < 1:
            raise InvalidInputError(f"shots must be whole numbers from 1 on, got {asked}")
        return numbers
    if not names:
        return list(SHOTS)
    index = split.class_index
    fewest = min(names, key=lambda name: index.counts[index.position(name)])
    count = int(index.counts[index.position(fewest)])
    shots = [number for number in SHOTS if number + spare <= count] or [1]
    if len(shots) < len(SHOTS):
        note(f"shots: {','.join(map(str, shots))}, as category {fewest!r} has {count:,} rows in {split.path}", shown)
    return shots


def say_means_are_computed(train: Split, shown: bool | None = None) -> None:
    """A store without class means is no error: they are computed once, and kept."""
    if not has_statistics(train):
        note(f"computing the class means of {train.path} (once)", shown)
