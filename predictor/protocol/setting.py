"""What a measurement is about: a store's rows, the categories, the methods, found and checked once for all of them; and
what a reader must be told before quoting a figure: contamination, leaks, and where the paper's do not compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import actstore
from actstore import ActivationStore, Split
from actstore.errors import DamagedError, InvalidInputError
from actstore.progress import note
from actstore.statistics import has_statistics
from actstore.storage.place import Place
from actstore.streams.sampling import draw_support
from predictor.protocol.base_categories import rows_of
from predictor.protocol.calibration import MOST_POOR, Calibration
from predictor.protocol.category_split import (
    CategorySplit,
    alphabetical_split,
    as_categories,
    compare_names,
    english_names,
)
from predictor.protocol.evaluation import AllWayTask
from predictor.protocol.method import Aggregate, MakesMethod, Method
from predictor.protocol.stand_ins import HeldOut

TEST = "test"
NAMED = 5  # categories in a warning
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
    made = _make(given) if isinstance(given, type) and issubclass(given, Method) else given
    if not hasattr(made, "as_method"):
        raise InvalidInputError(f"a method derives from predictor.Method, got {type(made).__name__}")
    method: Method = made.as_method(aggregate)
    return method


def _make(of: type[Method]) -> Method:
    try:
        return of()
    except TypeError as error:
        raise InvalidInputError(
            f"the class {of.__name__} is made without arguments, which fails ({error}); give a method: {of.__name__}(…)"
        ) from error


def find_test_split(store: ActivationStore, train: str, named: str | None = None) -> Split | None:
    """The split to test on: the one named, else val or test where the store has one."""
    if named is not None:
        return store[named]
    return next((store[name] for name in ("val", "test") if name in store.splits and name != train), None)


def require_test_split(store: ActivationStore, train: str, named: str | None, categories: CategorySplit) -> Split:
    """The split that is measured on: the one named, else test where the store has one with rows of base and novel
    categories, else val."""
    test = store[TEST] if named is None and train != TEST and TEST in _complete(store) else None
    if test is None or not all(_counts(test, names).any() for names in (categories.base, categories.novel) if names):
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


PAPER_CATEGORIES = 1000
UNKNOWN_TRAINING = (
    "WARNING: which classes the backbone was trained on is not known: it may have seen the novel categories "
    "(say it with `--trained-on` of `actstore import` or `actstore build`)"
)


def contamination(split: Split, categories: CategorySplit) -> str | None:
    """A warning for every table where the backbone was trained on classes that are called novel, or may have been: told
    by their names, and what names do not tell is said."""
    trained = split.spec.provenance.get("trained_classes")
    if trained is None:
        return UNKNOWN_TRAINING
    found = compare_names(categories.novel, trained, split.classes)
    said = []
    if seen := sorted(found.same):
        as_named = "" if found.same[seen[0]] == seen[0] else f" (as {_name(found.same[seen[0]])})"
        said.append(
            f"WARNING: the backbone was trained on novel class {_first_of(seen)}{as_named}; these are no few-shot "
            "results"
        )
    if kinds := sorted(found.kinds):
        others = len({found.kinds[name] for name in kinds}) - 1
        wider = _name(found.kinds[kinds[0]]) + f" and {others:,} more" * bool(others)
        said.append(f"the backbone was trained on {wider}, which may include novel class {_first_of(kinds)}")
    if found.unknown:
        said.append(
            f"WARNING: {len(found.unknown):,} of {len(categories.novel):,} novel categories could not be compared by "
            f"name with those that the backbone was trained on, such as {found.unknown[0]!r}: it may have seen them "
            "(name classes in English or by WordNet id, or say with `--trained-on` what it was trained on)"
        )
    if known := sorted(compare_names(categories.validation, trained, split.classes).same):
        said.append(
            f"WARNING: the backbone was trained on {len(known):,} of {len(categories.validation):,} validation "
            f"categories, such as {known[0]!r}: constants that are fitted on those may be too low"
        )
    return "; ".join(said) or None


def _name(trained: str) -> str:
    english = english_names(trained)[0]
    return repr(trained) if trained == english else f"{trained!r}, {english}"


def refuse_trained_on(what: str | Path, trained_on: Iterable[str], novel: Sequence[str]) -> None:
    """What was trained on a category knows it: its figures on that category are no few-shot results."""
    known = set(trained_on)
    if seen := [name for name in novel if name in known]:
        raise InvalidInputError(
            f"{what} was trained on class {_first_of(seen)}, which this split calls novel; "
            "measure it with the split of its training, or train it with this one"
        )


def is_as_large_as_the_paper(categories: CategorySplit) -> bool:
    """The paper's all-way figures are of 1,000 categories: among fewer every method looks better than there."""
    return len(categories.base) + len(categories.novel) == PAPER_CATEGORIES


def are_of_imagenet(categories: CategorySplit) -> bool:
    """The paper's figures of 5-way tasks are of mini-ImageNet, whose categories are some of ImageNet's."""
    from actstore.backbones.network import imagenet_wnids

    return set(categories.novel) <= set(imagenet_wnids())


def why_not_comparable_to_paper(split: Split) -> str | None:
    """The paper's figures are of one view (the centre) of each image."""
    views = split.spec.provenance.get("views", 1)
    return (
        None if views == 1 else f"{views} views of each image were averaged: the paper's figures, of one, are left out"
    )


def without_fitted_rows(task: AllWayTask, fits: Sequence[Calibration]) -> tuple[AllWayTask, str | None]:
    """The task without the rows that these constants were fitted on, for all methods alike, and a line that says so."""
    # what an earlier content of the split held are its first rows
    rows_then = {task.test.content: len(task.test)} | {content: count for count, content in task.test.committed.history}
    used = {(fit.held_out, rows_then[fit.held_out_of]) for fit in fits if fit.held_out_of in rows_then}
    rows = sorted({row for share, first in used for row in HeldOut(task.test, share, first).rows(task.base).tolist()})
    if not rows:
        return task, None
    said = f"constants were fitted on {len(rows):,} rows of the base in {task.test.name}: no method is tested on those"
    return replace(task, without=tuple(rows)), said


def leaks(store: ActivationStore, task: AllWayTask, shots: Sequence[int], draws: int, seed: int) -> str | None:
    """What an audit of the store says about images that are both support and test; None without an audit beside the
    store, or where it found none among the images tested."""
    from actstore.audit import kept_audit, shared_rows

    train, test = task.train, task.test
    try:
        audit = kept_audit(store, train.name, test.name)
    except (DamagedError, InvalidInputError) as error:
        return f"the check for leaks was skipped: {error}"
    if audit is None:
        return None
    tested = set(rows_of(test, [*task.base, *task.novel])[0].tolist())
    shared = {row: twins for row, twins in shared_rows(audit, test.name, train.name).items() if row in tested}
    if not shared:
        return None
    index, most = train.class_index, max(shots)  # fewer shots draw the first of these
    labels = index.positions(task.novel)
    drawn = {row for draw in range(draws) for row in draw_support(index, labels, most, seed, draw).ravel().tolist()}
    supported = [row for row, twins in shared.items() if not drawn.isdisjoint(twins)]
    first, (other, *_) = next(iter(shared.items()))
    what = "test image is" if len(shared) == 1 else "test images are"
    return (
        f"WARNING: {len(shared):,} {what} also in {train.name}, {len(supported):,} of them as support drawn here; "
        f"{test.name} {test.ids[first]} = {train.name} {train.ids[other]}"
        + (f" and {len(shared) - 1:,} more" if len(shared) > 1 else "")
        + f"; `actstore audit {store.path}` lists them"
    )


def _first_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    return f"{names[0]!r}{more}"


def without_poor(train: Split, test: Split, categories: CategorySplit, shots: int) -> tuple[CategorySplit, str | None]:
    """The novel categories that have so many examples and a test image, and a line that names the others; all of them
    where none would remain."""
    fits = (_counts(train, categories.novel) >= shots) & (_counts(test, categories.novel) > 0)
    poor = [name for name, is_one in zip(categories.novel, fits, strict=True) if not is_one]
    if not poor or not fits.any():
        return categories, None
    novel = tuple(name for name in categories.novel if name not in set(poor))
    said = (
        f"WARNING: {len(poor):,} of {len(categories.novel):,} novel categories are left out, as they have fewer than "
        f"{shots:,} images in {train.name} or none in {test.name}: {', '.join(map(repr, poor[:NAMED]))}"
        + f" and {len(poor) - NAMED:,} more" * (len(poor) > NAMED)
        + f"; all figures are over the other {len(novel):,}"
    )
    return replace(categories, novel=novel), said


FEW = 3  # fewer images of a category than this tell next to nothing about it


def describe_test(store: ActivationStore, task: AllWayTask) -> str:
    """In one line: how many images are tested, of which split, and which other splits could be tested on."""
    test, left_out = task.test, len(task.without)  # all of the base
    base, novel = (int(_counts(test, names).sum()) for names in (task.base, task.novel))
    for_constants = f" ({left_out:,} are left out for constants)" * bool(left_out)
    counts = f"{base - left_out:,} of base{for_constants} and {novel:,} of novel"
    others = [
        name for name in _complete(store) if name not in (task.train.name, test.name) and is_labelled(store[name])
    ]
    choice = f"; test on {' or '.join(others)} with test=… (--test-split)" if others else ""
    return f"test images: {counts} categories, from split {test.name}{choice}"


def thin_categories(test: Split, categories: CategorySplit) -> list[str]:
    """A line about the base, and one about the novel categories, where some have too few test images."""
    said = []
    for part, names in (("base", categories.base), ("novel", categories.novel)):
        counts = _counts(test, names)
        for few, how in ((counts == 0, "no image"), ((counts > 0) & (counts < FEW), f"fewer than {FEW} images")):
            if found := [name for name, is_one in zip(names, few, strict=True) if is_one]:
                of = f"{len(found):,} of {len(names):,} {part} categories"
                said.append(f"WARNING: {of}: {how} in {test.name} to test on, such as {found[0]!r}")
    return said


def _complete(store: ActivationStore) -> list[str]:
    return [name for name, split in store.splits.items() if split.complete]


def is_labelled(split: Split) -> bool:
    return bool(split.class_index.counts.sum())


def _counts(split: Split, names: Sequence[str]) -> NDArray[np.int64]:
    return split.class_index.counts[split.class_index.positions(names)]
