"""What a measurement is about: a store's rows, the categories, the methods; found and checked once for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import actstore
from actstore import ActivationStore, Split
from actstore.errors import InvalidInputError
from actstore.progress import note
from actstore.statistics import has_statistics
from actstore.storage.place import Place
from predictor.protocol.calibration import MOST_POOR
from predictor.protocol.category_split import CategorySplit, alphabetical_split, as_categories
from predictor.protocol.method import Aggregate, MakesMethod, Method

SHOTS = (1, 2, 3, 5)  # 1, 2 and 3 are the paper's, 1 and 5 what most others report
Source = ActivationStore | Place | str | Path
Categories = CategorySplit | str | Path | None


def open_store(store: Source) -> ActivationStore:
    if isinstance(store, Split):
        raise InvalidInputError(f"expected a store or its path, got split {store.name!r} of {store.store_path}; name "
                                "splits by train=… and test=…")  # fmt: skip
    return store if isinstance(store, ActivationStore) else actstore.open(store)


def listed(methods: Any) -> list[Any]:
    """One method or several."""
    return list(methods) if isinstance(methods, list | tuple) else [methods]


def choose_categories(given: Categories, methods: Any, store: ActivationStore) -> CategorySplit:
    """As given, or read from a file; else those that a method was trained with; else the alphabetical 90%."""
    if given is None:
        trained = [found for one in listed(methods) if (found := getattr(one, "categories", None)) is not None]
        return trained[0] if trained else alphabetical_split(store.classes)
    split = as_categories(given)
    split.require_known(store.classes, ("base", "novel"))
    return split


def make_methods(
    given: Sequence[MakesMethod] | MakesMethod, train: Split, categories: CategorySplit, aggregate: Aggregate | None
) -> list[Method]:
    methods = [as_method(one, aggregate) for one in listed(given)]
    if not methods:
        raise InvalidInputError("nothing to measure: give a trained phi, a baseline or a method of your own")
    for method in methods:
        method.check(train, categories)
    return methods


def as_method(given: Any, aggregate: Aggregate | None) -> Method:
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
        choice = f"; choose another with test= (--test-split): {', '.join(others)}" if others else ""
        raise InvalidInputError(
            f"{store.path} has no split val or test to take test images from; it has {train}{choice}. "
            f"`actstore build FOLDER {store.path}` adds the images of FOLDER/val/CATEGORY, "
            f"`actstore import FILE {store.path} --split val` rows of a file, and a new store that is built with "
            "val=0.2 (--val-share) holds a share of each class out"
        )
    return test


def choose_shots(
    asked: Iterable[int] | int | None, split: Split | None = None, names: Sequence[str] = (), spare: int = 0,
    shown: bool | None = None, poor: float = 0.0,
) -> list[int]:  # fmt: skip
    """As asked for; by default those of SHOTS that all of these categories, but for this share, have rows for, and
    `spare` more."""
    if asked is not None:
        numbers = [asked] if isinstance(asked, Integral) or not isinstance(asked, Iterable) else list(asked)
        if not numbers or any(not isinstance(number, Integral) or number < 1 for number in numbers):
            raise InvalidInputError(f"shots must be whole numbers from 1 on, got {asked!r}")
        return sorted({int(number) for number in numbers})
    if split is None or not names:
        return list(SHOTS)
    index = split.class_index
    by_count = sorted(names, key=lambda name: index.counts[index.position(name)])
    fewest = by_count[int(poor * len(names))]
    count = int(index.counts[index.position(fewest)])
    shots = [number for number in SHOTS if number + spare <= count] or [1]
    if len(shots) < len(SHOTS):
        note(f"shots: {','.join(map(str, shots))}, as category {fewest!r} has {count:,} rows in {split.path}", shown)
    return shots


def shots_to_fit(
    asked: Iterable[int] | int | None, rows: Split, categories: CategorySplit, shown: bool | None = None
) -> list[int]:
    """Numbers of examples that constants are fitted for: by default those that most stand-ins have rows for."""
    stand_ins = categories.validation or categories.base
    return choose_shots(asked, rows, stand_ins, spare=1, shown=shown, poor=MOST_POOR)


def say_means_are_computed(train: Split, shown: bool | None = None) -> None:
    """A store without class means is no error: they are computed once, and kept."""
    if not has_statistics(train):
        note(f"computing the class means of {train.path} (once)", shown)
