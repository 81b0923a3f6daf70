"""Baselines by name: what `baselines.make` and `ppa eval --methods` offer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from actstore.errors import InvalidInputError
from actstore.search.engines import SearchChoice
from actstore.split import Split
from baselines.attention_weights import METHOD as ATTENTION
from baselines.attention_weights import AttentionWeights
from baselines.child import Child
from baselines.class_mean import ClassMean
from baselines.finetune import METHOD as FINETUNE_IMAGES
from baselines.finetune import FineTuned, FinetunedEpisode, FineTunedHead
from baselines.image_training import STORE
from baselines.imprint import Imprint
from baselines.linear import trained_head
from baselines.method_names import load_class, require_names
from baselines.nearest_neighbour import SHARES, ExampleScores, NearestNeighbour, identity
from baselines.oracle import LinearOracle, NearestOracle
from baselines.ridge import Ridge
from baselines.simple_shot import SimpleShot
from baselines.tip_adapter import TipAdapter
from baselines.triplet import IMAGES as TRIPLET_IMAGES
from baselines.triplet import METHOD as TRIPLET
from baselines.triplet import EmbeddedRows, Triplet, TripletOfImages, trained_embedding
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.head import Head, head_for, read_head
from predictor.protocol.method import EpisodeMethod, Method
from predictor.training.loop import MODEL, Trained, read_trained

HEAD, ORACLE = "head", "oracle"  # trainings of linear.py: on the base categories, and on all of them


def make(
    *names: str,
    train: Split | None = None,
    split: CategorySplit | None = None,
    head: Head | str | Path | None = None,
    runs: str | Path = "runs",
    seed: int = 0,
    search: str = "auto",
    device: str = "auto",
    say: Callable[[str], None] | None = None,
) -> list[Method]:
    """Make methods by name, in the order asked for.

    Methods that are trained (triplet, finetune, child, imprint, attention, oracle) are read from the folder `runs`,
    where `baselines.train` left them, and belong to rows and categories. nn and triplet become three methods each, for
    100%, 10% and 1% of D_large.

    Args:
        *names: some of `baselines.NAMES`, "all", or module:Class for a class of your own. "all" takes those
            that are trained on images, and attention, only where they are trained.
        train: the rows of the trainings.
        split: the base and novel categories of the trainings.
        head: the network's own classifier of the base categories (w_large^pt), or its file, in place of the one in
            runs/head.
        runs: the folder of the trainings.
        seed: of what is drawn.
        search: how nearest rows are found: "auto", "exact", "bounded" or "faiss".
        device: where rows are searched and trained on: "auto", "cpu" or "cuda".
        say: is called with a sentence about what takes its time.

    Returns:
        The methods, for `predictor.evaluate` and the like.

    Raises:
        InvalidInputError: a name is not known, or a training is missing or belongs to other rows or categories.

    Examples:
        >>> [method.name for method in baselines.make("class-mean", "simple-shot")]
        ['Nearest class mean', 'SimpleShot (centred class mean)']
    """
    given = head if head is None or isinstance(head, Head) else read_head(Path(head))
    source = Source(train, split, given, Path(runs), seed, SearchChoice(search, device), say or (lambda text: None))
    require_names(names)
    if "all" in names:
        are_there = [name for name in WHERE_TRAINED if any(source.runs.glob(f"{name}*/{MODEL}"))]
        names = (*(name for name in BASELINES if name not in WHERE_TRAINED or name in are_there),)
    methods, elsewhere = list[Method](), f" --runs {source.runs}" * (source.runs != Path("runs"))
    for name in names:
        for method in BASELINES[name](source) if name in BASELINES else [load_class(name)]:
            method.folder, method.named_by = source.runs, f"--methods {name}{elsewhere}"
            methods.append(method)
    return methods


@dataclass(frozen=True)
class Source:
    """What baselines are made from; see `make`."""

    train: Split | None
    split: CategorySplit | None
    head: Head | None
    runs: Path
    seed: int
    search: SearchChoice
    say: Callable[[str], object]

    @property
    def rows(self) -> Split:
        if self.train is None:
            raise InvalidInputError("a trained baseline belongs to rows: give baselines.make the argument train")
        return self.train

    @property
    def categories(self) -> CategorySplit:
        if self.split is None:
            raise InvalidInputError("a trained baseline belongs to categories: give baselines.make the argument split")
        return self.split

    @cached_property
    def classifier(self) -> Head:
        """Of the base categories."""
        if self.head is None:
            return trained_head(self.trained(HEAD))
        return head_for(self.head, self.categories.base, self.rows.dim)

    def trained(self, name: str) -> Trained:
        """The training of this name, of these very rows and categories."""
        folder, rows = self.runs / name, self.rows
        trained = read_trained(folder, name, f"ppa baseline {name} --store {rows.store_path} --out {folder}")
        if trained.identity["data"]["content"] != rows.content:
            raise InvalidInputError(
                f"{folder} was trained on other rows than those of {rows.path}; train it again "
                "with restart=True (--restart)"
            )
        names = self.categories.base if name != ORACLE else (*self.categories.base, *self.categories.novel)
        if set(trained.identity["split"]["classes"]) != set(names):
            raise InvalidInputError(f"{folder} was trained on other classes than this split's; choose that split")
        return trained


def _nearest(kind: type[NearestNeighbour], source: Source, **more: Any) -> list[Method]:
    """With every share of D_large."""
    examples = ExampleScores(more.get("embed", identity))
    return [kind(share, source.seed, source.search, **more, examples=examples) for share in SHARES]


def _triplet(source: Source) -> list[Method]:
    embed = trained_embedding(source.trained(TRIPLET))
    kept = EmbeddedRows(source.rows, embed, source.search, source.say)
    return _nearest(Triplet, source, embed=embed, embedded=kept)


def _triplet_images(source: Source) -> list[Method]:
    import actstore

    folder = source.runs / TRIPLET_IMAGES
    trained = read_trained(folder, TRIPLET_IMAGES, f"ppa baseline {TRIPLET_IMAGES} --images … --out {folder}")
    _require_same_base(folder, trained, source.categories)
    ours, other = source.rows, actstore.open(folder / STORE)[source.rows.name]
    if len(ours) != len(other) or ours.classes != other.classes or (ours.labels != other.labels).any():
        raise InvalidInputError(f"{other.path} must hold the same images as {ours.path}, row by row; extract it again")
    methods = _nearest(TripletOfImages, source)
    for method in methods:
        method.store = folder / STORE
    return methods


def _finetune_images(source: Source) -> list[Method]:
    """One for each folder runs/finetune-images*: a training is for one number of shots and one draw."""
    folders = sorted(path.parent for path in source.runs.glob(f"{FINETUNE_IMAGES}*/{MODEL}"))
    command = f"ppa baseline {FINETUNE_IMAGES} --images … --out {source.runs / FINETUNE_IMAGES}"
    methods: list[Method] = []
    for folder in folders or [source.runs / FINETUNE_IMAGES]:
        trained = read_trained(folder, FINETUNE_IMAGES, command)
        _require_same_base(folder, trained, source.categories)
        methods.append(FineTuned(trained))
        methods[-1].store = folder / STORE
    return methods


def _require_same_base(folder: Path, trained: Trained, split: CategorySplit) -> None:
    """A training that saw a novel category with all of its images would pass for a few-shot result."""
    if set(trained.identity["split"]["base"]) != set(split.base):
        raise InvalidInputError(f"{folder} was trained on other classes than this split's; choose that split")


def _oracle(source: Source) -> list[Method]:
    novel = source.categories.novel
    return [NearestOracle(novel, source.search), LinearOracle(trained_head(source.trained(ORACLE)), novel)]


BASELINES: dict[str, Callable[[Source], list[Method]]] = {
    "nn": lambda source: _nearest(NearestNeighbour, source),
    TRIPLET: _triplet,
    "finetune": lambda source: [FineTunedHead(source.classifier, source.seed, device=source.search.place)],
    "child": lambda source: [Child(source.classifier, source.seed, device=source.search.place)],
    "imprint": lambda source: [Imprint(source.classifier), Imprint()],
    "class-mean": lambda source: [ClassMean()],
    "simple-shot": lambda source: [SimpleShot()],
    "ridge": lambda source: [Ridge(source.seed)],
    "tip-adapter": lambda source: [TipAdapter(source.seed)],
    ATTENTION: lambda source: [AttentionWeights(source.trained(ATTENTION))],
    "oracle": _oracle,
    TRIPLET_IMAGES: _triplet_images,
    FINETUNE_IMAGES: _finetune_images,
}
WHERE_TRAINED = (ATTENTION, TRIPLET_IMAGES, FINETUNE_IMAGES)  # `all` takes them where they are trained
# of 5-way tables, where a task has no base categories and nothing was trained before
EPISODES: dict[str, Callable[[], EpisodeMethod]] = {
    "nn": NearestNeighbour,
    "class-mean": ClassMean,
    "simple-shot": SimpleShot,
    "ridge": Ridge,
    "tip-adapter": TipAdapter,
    "imprint": Imprint,
    "finetune": FinetunedEpisode,
}


def make_for_episodes(*names: str) -> list[EpisodeMethod]:
    """Make methods of N-way K-shot tasks by name.

    Args:
        *names: some of `baselines.EPISODE_NAMES`, or module:Class for a class of your own.

    Returns:
        The methods, for `predictor.run_episodes`.

    Examples:
        >>> len(baselines.make_for_episodes("nn", "class-mean"))
        2
    """
    require_names(names, EPISODES, ())
    return [EPISODES[name]() if name in EPISODES else load_class(name) for name in names]
