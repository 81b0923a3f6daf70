"""What a reader must be told before quoting a figure: contamination, leaks, and where the paper's do not compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from actstore import ActivationStore, Split
from actstore.audit import kept_audit, shared_rows
from actstore.errors import DamagedError, InvalidInputError
from actstore.streams.sampling import draw_support
from predictor.protocol.base_categories import rows_of
from predictor.protocol.calibration import Calibration
from predictor.protocol.category_split import CategorySplit, compare_names, english_names
from predictor.protocol.evaluation import AllWayTask
from predictor.protocol.stand_ins import HeldOut

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
    names = (*categories.base, *categories.validation, *categories.novel)
    found, novel = compare_names(names, trained, split.classes), {*categories.novel, *categories.validation}
    said = []
    if seen := sorted(novel & found.same.keys()):
        as_named = "" if found.same[seen[0]] == seen[0] else f" (as {_name(found.same[seen[0]])})"
        said.append(
            f"WARNING: the backbone was trained on novel class {_first_of(seen)}{as_named}; these are no few-shot "
            "results"
        )
    if kinds := sorted(novel & found.kinds.keys()):
        others = len({found.kinds[name] for name in kinds}) - 1
        wider = _name(found.kinds[kinds[0]]) + f" and {others:,} more" * bool(others)
        said.append(f"the backbone was trained on {wider}, which may include novel class {_first_of(kinds)}")
    if found.unknown:
        said.append(
            f"{len(found.unknown):,} of {len(names):,} categories could not be compared by name with those that the "
            f"backbone was trained on, such as {found.unknown[0]!r}"
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
    drawn = _drawn(task, max(shots), draws, seed)
    supported = [row for row, twins in shared.items() if not drawn.isdisjoint(twins)]
    first, (other, *_) = next(iter(shared.items()))
    what = "test image is" if len(shared) == 1 else "test images are"
    return (
        f"WARNING: {len(shared):,} {what} also in {train.name}, {len(supported):,} of them as support drawn here; "
        f"{test.name} {test.ids[first]} = {train.name} {train.ids[other]}"
        + (f" and {len(shared) - 1:,} more" if len(shared) > 1 else "")
        + f"; `actstore audit {store.path}` lists them"
    )


def _drawn(task: AllWayTask, shots: int, draws: int, seed: int) -> set[int]:
    """All rows that are support in one of the draws; fewer shots draw the first of these."""
    index = task.train.class_index
    labels = index.positions(task.novel)
    return {row for draw in range(draws) for row in draw_support(index, labels, shots, seed, draw).ravel().tolist()}


def _first_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    return f"{names[0]!r}{more}"
