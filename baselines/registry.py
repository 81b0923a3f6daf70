"""Baselines by name, made for one store and one split: what `ppa eval --methods` offers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from actstore.errors import InvalidInputError
from actstore.search.leading import SearchChoice
from actstore.split import Split
from baselines.child import Child
from baselines.class_mean import ClassMean
from baselines.embedded_rows import EmbeddedRows
from baselines.finetune import METHOD as FINETUNE_IMAGES
from baselines.finetune import FineTuned
from baselines.finetune_head import FineTunedHead
from baselines.image_training import STORE
from baselines.imprint import Imprint
from baselines.large_sample import ExtendedHead, LargeSample
from baselines.linear import trained_head
from baselines.method_names import parse_methods
from baselines.nearest_neighbour import SHARES, ExampleScores, NearestNeighbour
from baselines.oracle import LinearOracle, NearestOracle
from baselines.simple_shot import SimpleShot
from baselines.triplet import METHOD as TRIPLET
from baselines.triplet import trained_embedding
from baselines.triplet_images import METHOD as TRIPLET_IMAGES
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.head import Head
from predictor.protocol.method import Method
from predictor.protocol.stand_ins import Change, as_they_are
from predictor.training.run_files import MODEL, Trained, read_trained

HEAD, ORACLE = "head", "oracle"  # trainings of linear.py: on the base categories, and on all of them


@dataclass(frozen=True)
class Setting:
    """What baselines are made from. head: w_large^pt, or None for the one in runs/head. runs: folder of trainings.

    change: of all activations of the base, and whole: the split that was trained with, where `split` is one of its
    stand-in tasks (see `predictor.protocol.stand_ins`). search: how nearest rows are found. say: told what takes time.
    """

    train: Split
    split: CategorySplit
    head: Head | None = None
    runs: Path = Path("runs")
    seed: int = 0
    change: Change = as_they_are
    whole: CategorySplit | None = None
    search: SearchChoice = SearchChoice()  # noqa: RUF009 - frozen
    say: Callable[[str], None] = lambda _: None

    @cached_property
    def classifier(self) -> Head:
        return trained_head(self.trained(HEAD)) if self.head is None else self.head

    @cached_property
    def sample(self) -> LargeSample:
        return LargeSample(self.train, self.split.base, self.seed, change=self.change)

    def trained(self, name: str) -> Trained:
        """The training of this name, of this very store and split."""
        folder = self.runs / name
        trained = read_trained(folder, name, f"ppa baseline {name} --store {self.train.store_path} --out {folder}")
        if trained.identity["data"]["content"] != self.train.content:
            raise InvalidInputError(
                f"{folder} was trained on other rows than those of {self.train.path}; train it again with --restart"
            )
        split = self.whole or self.split
        names = split.base if name != ORACLE else (*split.base, *split.novel)
        if set(trained.identity["split"]["classes"]) != set(names):
            raise InvalidInputError(f"{folder} was trained on other classes than this split's; choose that split")
        return trained


@dataclass(frozen=True)
class Entry:
    """A method, and the store whose activations it reads, where that is another than the one at hand.

    Such a store has the same images in the same rows; a split that it lacks is the one at hand's.
    """

    method: Method
    store: Path | None = None


def _nearest(setting: Setting, train: Split | None = None, store: Path | None = None, **more: Any) -> list[Entry]:
    """With every share of D_large, in the rows of the setting or of another split."""
    rows, base = train or setting.train, setting.split.base
    shared: dict[str, Any] = {"search": setting.search, "examples": ExampleScores(more.get("embed"))}
    return [Entry(NearestNeighbour(rows, base, share, setting.seed, **more, **shared), store) for share in SHARES]


def _triplet(setting: Setting) -> list[Entry]:
    embed = trained_embedding(setting.trained(TRIPLET))
    kept = EmbeddedRows(setting.train, embed, setting.search, setting.say)
    named: dict[str, Any] = {"name": "Triplet (activations)", "paper_name": "Triplet", "key": TRIPLET}
    return _nearest(setting, embed=embed, embedded=kept, change=setting.change, **named)


def _triplet_images(setting: Setting) -> list[Entry]:
    import actstore

    folder = setting.runs / TRIPLET_IMAGES
    trained = read_trained(folder, TRIPLET_IMAGES, f"ppa baseline {TRIPLET_IMAGES} --images … --out {folder}")
    _require_same_base(folder, trained, setting.split)
    train = actstore.open(folder / STORE)[setting.train.name]
    _require_same_rows(setting.train, train)
    named: dict[str, Any] = {"name": "Triplet (images)", "paper_name": "Triplet", "key": TRIPLET_IMAGES}
    return _nearest(setting, train, folder / STORE, **named)


def _finetune_images(setting: Setting) -> list[Entry]:
    """One for each folder runs/finetune-images*: a training is for one number of shots and one draw."""
    folders = sorted(path.parent for path in setting.runs.glob(f"{FINETUNE_IMAGES}*/{MODEL}"))
    command = f"ppa baseline {FINETUNE_IMAGES} --images … --out {setting.runs / FINETUNE_IMAGES}"
    entries = []
    for folder in folders or [setting.runs / FINETUNE_IMAGES]:
        trained = read_trained(folder, FINETUNE_IMAGES, command)
        _require_same_base(folder, trained, setting.split)
        entries.append(Entry(FineTuned(trained), folder / STORE))
    return entries


def _imprint(setting: Setting) -> list[Entry]:
    heads = (setting.classifier, None)
    return [Entry(Imprint(setting.train, setting.split.base, head, setting.change)) for head in heads]


def _extended(make: type[ExtendedHead]) -> Callable[[Setting], list[Entry]]:
    return lambda setting: [Entry(make(setting.train, setting.split.base, setting.classifier, setting.sample))]


def _oracle(setting: Setting) -> list[Entry]:
    linear = LinearOracle(trained_head(setting.trained(ORACLE)), setting.split, setting.train.dim)
    return [Entry(NearestOracle(setting.train, setting.split, setting.search)), Entry(linear)]


BASELINES: dict[str, Callable[[Setting], list[Entry]]] = {
    "nn": lambda setting: _nearest(setting, change=setting.change),
    "triplet": _triplet,
    "finetune": _extended(FineTunedHead),
    "child": _extended(Child),
    "imprint": _imprint,
    "class-mean": lambda setting: [Entry(ClassMean(setting.train, setting.split.base, setting.change))],
    "simple-shot": lambda setting: [Entry(SimpleShot(setting.train, setting.split.base, setting.change))],
    "oracle": _oracle,
    TRIPLET_IMAGES: _triplet_images,
    FINETUNE_IMAGES: _finetune_images,
}
FROM_IMAGES = (TRIPLET_IMAGES, FINETUNE_IMAGES)  # `all` takes them where they are trained


def make_baselines(names: Sequence[str], setting: Setting) -> list[Entry]:
    """In the order asked for; "all" stands for every one."""
    if "all" in names:
        names = [name for name in BASELINES if name not in FROM_IMAGES or _is_trained(setting.runs, name)]
    names = parse_methods(",".join(names), BASELINES, ("all",)) if names else []
    return [entry for name in names for entry in BASELINES[name](setting)]


def _is_trained(runs: Path, name: str) -> bool:
    return any(runs.glob(f"{name}*/{MODEL}"))


def _require_same_base(folder: Path, trained: Trained, split: CategorySplit) -> None:
    """A training that saw a novel category with all of its images would pass for a few-shot result."""
    if set(trained.identity["split"]["base"]) != set(split.base):
        raise InvalidInputError(f"{folder} was trained on other classes than this split's; choose that split")


def _require_same_rows(ours: Split, other: Split) -> None:
    if len(ours) != len(other) or ours.classes != other.classes or (ours.labels != other.labels).any():
        raise InvalidInputError(f"{other.path} must hold the same images as {ours.path}, row by row; extract it again")
