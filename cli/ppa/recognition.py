"""What the commands of `ppa` share: a store, its categories, and a warning where a result would not be honest."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.options import STORE, ActivationStore, Place, Split, find_store
from cli.outputs import claim_folder
from cli.ppa.options import SHOTS, SPLIT_FILE

if TYPE_CHECKING:
    from predictor.classifier.classifier import Classifier
    from predictor.protocol.category_split import CategorySplit
    from predictor.protocol.stand_ins import HeldOut
    from predictor.training.trained_phi import TrainedPhi

PAPER_CATEGORIES = 1000
UNKNOWN_TRAINING = (
    "WARNING: which classes the backbone was trained on is not known: it may have seen the novel categories "
    "(say it with `--trained-on` of `actstore import` or `actstore build`)"
)


def claim_run(folder: Path, *inputs: Path | None) -> None:
    """What trainings leave in a folder they may replace there, and nothing of others that has such a name."""
    from dataclasses import replace

    from cli import filekinds as kinds
    from predictor.phi.calibration import FIGURE, NAME
    from predictor.training.run_files import CHECKPOINT, CURVES, LOG, MODEL
    from predictor.training.trained_phi import STORE_NOTE

    names = [
        (MODEL, kinds.TRAINING), (CHECKPOINT, kinds.TRAINING), ("model.json", kinds.ABOUT_TRAINING), (LOG, kinds.LOG),
        ("checkpoint.json", kinds.ABOUT_TRAINING), (CURVES, kinds.FIGURE), ("head.safetensors", kinds.HEAD),
        ("weights.safetensors", kinds.WEIGHTS),
        (STORE_NOTE, kinds.STORE_NOTE),
        (NAME, replace(kinds.CALIBRATION, is_work=False)), (FIGURE, kinds.FIGURE),  # of the weights before
    ]  # fmt: skip
    if is_first():
        claim_folder(folder, names, inputs)


def is_first() -> bool:
    """Whether this process is the one that speaks, of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def note(text: str) -> None:
    """On stderr, once."""
    if is_first():
        click.echo(text, err=True)


def choose_categories(path: Path | None, names: Sequence[str], parts: Sequence[str] | None = None) -> CategorySplit:
    """parts: those whose every class must be among the names; all of them by default."""
    from predictor.protocol.category_split import PARTS, alphabetical_split, read_split

    if path is None and SPLIT_FILE.is_file():
        path = SPLIT_FILE
        note(f"categories: {path} of this folder")
    if path is None:
        split = alphabetical_split(names)
        note(
            f"categories: no {SPLIT_FILE} in this folder, so the first 90% of the class names are the base "
            f"({len(split.base):,}), the others novel ({len(split.novel):,}); `ppa split` chooses others"
        )
        return split
    split = read_split(path)
    split.require_known(names, PARTS if parts is None else parts)
    return split


def store_of(store: Place | None, phis: Sequence[TrainedPhi]) -> Place:
    """The one that was named, else the one that phi was trained on where it still lies there, else as elsewhere."""
    from predictor.training.trained_phi import noted_store

    for phi in phis if store is None else ():
        if (named := noted_store(phi.path.parent)) is not None:
            place = STORE.convert(named, None, click.get_current_context(silent=True))
            if place.exists():
                local = place.local_path
                inside = local is not None and local.is_relative_to(Path.cwd())
                shown = local.relative_to(Path.cwd()) if local is not None and inside else place
                note(f"store: {shown}, which {phi.path.parent} was trained on")
                return place
    return find_store(store)


def choose_methods(text: str, known: Collection[str], groups: Collection[str] = ("none",)) -> list[str]:
    """What --methods names: see `parse_methods`."""
    from actstore.errors import InvalidInputError
    from baselines.method_names import parse_methods

    try:
        return parse_methods(text, known, groups)
    except InvalidInputError as error:
        raise click.UsageError(str(error)) from error


def choose_shots(text: str | None, split: Split | None = None, names: Sequence[str] = (), spare: int = 0) -> list[int]:
    """As asked for; by default those of SHOTS that every one of these categories has rows for, and `spare` more."""
    if text is not None:
        return parse_numbers("--shots", text)
    if split is None or not names:
        return list(SHOTS)
    index = split.class_index
    fewest = min(names, key=lambda name: index.counts[index.position(name)])
    count = int(index.counts[index.position(fewest)])
    shots = [number for number in SHOTS if number + spare <= count] or [1]
    if len(shots) < len(SHOTS):
        note(f"shots: {','.join(map(str, shots))}, as category {fewest!r} has {count:,} rows in {split.path}")
    return shots


def find_test_split(store: ActivationStore, train: str, named: str | None) -> Split | None:
    """The split to test on: the one named, else val or test where the store has one."""
    if named is not None:
        return store[named]
    return next((store[name] for name in ("val", "test") if name in store.splits and name != train), None)


def held_out_of(store: ActivationStore, train: str, named: str | None) -> HeldOut | None:
    """A share of the split that is tested on, which the network was not trained on. named: a split, or none."""
    from predictor.protocol.stand_ins import HeldOut

    test = None if named == "none" else find_test_split(store, train, named)
    return None if test is None else HeldOut(test)


def require_test_split(store: ActivationStore, train: str, named: str | None) -> Split:
    test = find_test_split(store, train, named)
    if test is None:
        raise click.UsageError(
            f"{store.path} has no split val or test to take test images from; it has {', '.join(store.splits)}: "
            "name one with --test-split, or add one with `actstore append`"
        )
    return test


def seen_novel(split: Split, categories: CategorySplit) -> str | None:
    """A warning for every table where the backbone was trained on classes that are called novel, or may have been."""
    if split.spec.provenance.get("trained_classes") is None:
        return UNKNOWN_TRAINING
    seen = trained_on_novel(split, categories)
    if not seen:
        return None
    return f"WARNING: the backbone was trained on novel class {_first_of(seen)}; these are no few-shot results"


def trained_on_novel(split: Split, categories: CategorySplit) -> list[str]:
    """Those of the novel and validation classes that the backbone is known to have been trained on."""
    return sorted({*categories.novel, *categories.validation} & set(split.spec.provenance.get("trained_classes") or ()))


def is_as_large_as_the_paper(categories: CategorySplit) -> bool:
    """The paper's all-way figures are of 1,000 categories: among fewer every method looks better than there."""
    return len(categories.base) + len(categories.novel) == PAPER_CATEGORIES


def are_of_imagenet(categories: CategorySplit) -> bool:
    """The paper's figures of 5-way tasks are of mini-ImageNet, whose categories are some of ImageNet's."""
    from actstore.backbones.imagenet import imagenet_wnids

    return set(categories.novel) <= set(imagenet_wnids())


def without_paper(split: Split) -> str | None:
    """Why the paper's figures are not beside those of a store: they are of one view (the centre) of each image."""
    views = split.spec.provenance.get("views", 1)
    return (
        None if views == 1 else f"{views} views of each image were averaged: the paper's figures, of one, are left out"
    )


def refuse_leak(path: Path, trained_on: Iterable[str], novel: Sequence[str]) -> None:
    """What was trained on a category knows it: its figures on that category are no few-shot results."""
    known = set(trained_on)
    if seen := [name for name in novel if name in known]:
        from actstore.errors import InvalidInputError

        raise InvalidInputError(
            f"{path} was trained on class {_first_of(seen)}, which this split calls novel; "
            "measure it with the split of its training, or train it with this one"
        )


def _first_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    return f"{names[0]!r}{more}"


def say_means_are_computed(train: Split) -> None:
    """A store without class means is no error: they are computed once, and kept."""
    from actstore.statistics.class_statistics import has_statistics

    if is_first() and not has_statistics(train):
        note(f"computing the class means of {train.path} (once)")


def set_unknown_at(classifier: Classifier, threshold: float | None) -> None:
    """None: as it is."""
    from predictor.classifier.unknown import PHOTOS, Unknown

    if threshold is not None:
        classifier.set_unknown((classifier.unknown or Unknown(PHOTOS)).set_at(threshold))


def parse_numbers(option: str, text: str) -> list[int]:
    """Positive whole numbers with commas between them, in ascending order and each once."""
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise click.UsageError(f"{option} must be whole numbers from 1 on with commas, such as 1,2,3, got {text!r}")
    return numbers
