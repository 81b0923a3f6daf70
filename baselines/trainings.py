"""Trainings of baselines by name: on rows of a store, on images, or on tasks of images."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import actstore
from actstore import ActivationStore
from actstore.backbones import load_backbone, stated_backbone
from actstore.compute import parse_device
from actstore.errors import InvalidInputError
from actstore.extraction.build import BuildOptions, build
from actstore.images import open_images
from actstore.progress import SplitBars, TrainingBars, note
from baselines.attention_weights import AttentionConfig, AttentionTrainee
from baselines.finetune import Draw, train_finetuned
from baselines.image_training import STORE, WEIGHTS, ImageConfig, ImageRun
from baselines.large_sample import RowTrainee, train_on_rows
from baselines.learners import decode_classes
from baselines.linear import LinearConfig, LinearTrainee
from baselines.meta_training import choose_meta_config, train_learner
from baselines.triplet import TripletConfig, TripletTrainee, train_triplet_images
from predictor.protocol.category_split import CategorySplit, alphabetical_split
from predictor.protocol.head import read_head
from predictor.training import RunOptions, Trained

LARGEST = 80  # pixels of a side in a task: the paper's; smaller images stay as small as they are
Sets = Mapping[str, Any]  # split name -> images
ROWS = {"store", "train_split", "learning_rate"}
IMAGES = {"images", "backbone", "weights", "workers", "flip", "steps", "batch_size", "learning_rate", "extract"}
ON_ROWS: dict[str, tuple[type[RowTrainee], Callable[..., Any]]] = {
    "triplet": (TripletTrainee, TripletConfig),
    "attention": (AttentionTrainee, AttentionConfig),
    "head": (LinearTrainee, LinearConfig),
    "oracle": (LinearTrainee, LinearConfig),
}
TASKS = {"images", "image_size", "workers", "way", "shots", "queries", "tasks", "steps", "seconds", "learning_rate",
         "width"}  # fmt: skip
OPTIONS: dict[str, set[str]] = {
    "triplet": ROWS | {"steps"},
    "attention": ROWS | {"steps"},
    "head": ROWS | {"epochs", "batch_size"},
    "oracle": ROWS | {"epochs", "batch_size"},
    "triplet-images": IMAGES,
    "finetune-images": IMAGES | {"shots", "draw", "head"},
    "matching": TASKS | {"full_context"},
    "prototypical": TASKS,
    "maml": TASKS | {"order", "inner_steps", "inner_rate"},
    "meta-lstm": TASKS | {"inner_steps", "first_rate"},
}
"""For each baseline that `train` knows, the names of its settings: see `sorted(baselines.OPTIONS["head"])`."""


def train(
    name: str,
    out: str | Path | None = None,
    *,
    split: CategorySplit | Callable[[Sequence[str]], CategorySplit] | None = None,
    device: str = "auto",
    seed: int = 0,
    checkpoint_seconds: float = 15.0,
    restart: bool = False,
    progress: bool | None = None,
    **settings: Any,
) -> tuple[Trained, dict[str, str]]:
    """Train a baseline that needs it, so that `baselines.make` finds it.

    An interrupted training goes on with the same call.

    Args:
        name: "triplet", "attention", "head" or "oracle" train on rows; "triplet-images" and "finetune-images" train a
            whole network on images; "matching", "prototypical", "maml" and "meta-lstm" train on tasks of images.
        out: the folder of the training, by default runs/NAME.
        split: base and novel categories, or a function that chooses them among class names; by default the first 90%
            of the names are the base.
        device: "cpu", "cuda", "cuda:1" or "auto".
        seed: of what is drawn.
        checkpoint_seconds: how often the state is saved.
        restart: discard what is in the folder.
        progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.
        **settings: what `baselines.OPTIONS` lists for the name, such as `store` and `steps`, or `images`, `backbone`
            and `weights`.

    Returns:
        The training, and a dictionary that names under `store` the activations made with the network that was trained.

    Raises:
        InvalidInputError: the name or a setting is not known, or a setting is missing.

    Examples:
        >>> trained, stores = baselines.train("head", store=store, split=split, epochs=1)
    """
    if name not in OPTIONS:
        raise InvalidInputError(f"no baseline {name!r} is trained; there are {', '.join(OPTIONS)}")
    known = {option for options in OPTIONS.values() for option in options}
    if unknown := sorted(set(settings) - known):
        raise InvalidInputError(f"a baseline has no setting {unknown[0]!r}; there are {', '.join(sorted(known))}")
    given = {**dict.fromkeys(known), **settings, "seed": seed, "device": device, "restart": restart,
             "checkpoint_seconds": checkpoint_seconds}  # fmt: skip
    choose = split if callable(split) else lambda names: alphabetical_split(names) if split is None else split
    with TrainingBars(name, progress) as bars:
        return _train(Request(name, Path("runs") / name if out is None else Path(out), given, choose, bars, progress))


@dataclass(frozen=True)
class Request:
    """given: the values of all settings, None where one was not given."""

    name: str
    folder: Path
    given: Mapping[str, Any]
    categories: Callable[[Sequence[str]], CategorySplit]
    bars: TrainingBars
    progress: bool | None

    def settings(self, *names: str) -> dict[str, Any]:
        """Those of these settings that were given, for a configuration whose defaults are the others."""
        changed = {name: self.given[name] for name in names if self.given[name] is not None}
        return {"seed": self.given["seed"], **changed}

    def require(self, name: str) -> Any:
        if self.given[name] is None:
            raise InvalidInputError(f"the baseline {self.name} needs --{name.replace('_', '-')}")
        return self.given[name]

    @property
    def backbone(self) -> str:
        """As asked for, else as the file of weights says."""
        weights = self.given["weights"]
        stated = None if weights is None else stated_backbone(Path(weights))
        return str(self.given["backbone"] or stated or self.require("backbone"))

    @property
    def workers(self) -> int:
        return self.given["workers"] or 0

    @property
    def run(self) -> dict[str, Any]:
        """What every training takes."""
        options = RunOptions(self.given["checkpoint_seconds"], self.given["restart"])
        return {"device": parse_device(self.given["device"]), "options": options, "report": self.bars.report}


def _train(request: Request) -> tuple[Trained, dict[str, str]]:
    if "images" not in OPTIONS[request.name]:
        return _train_on_rows(request), {}
    sets = open_images(request.require("images"))
    if "extract" not in OPTIONS[request.name]:
        return _train_on_tasks(request, sets), {}
    if request.name == "triplet-images":
        return _train_on_images(request, sets, train_triplet_images), _extract(request, sets)
    draw = Draw(request.given["shots"] or 1, request.given["draw"] or 0, request.given["seed"])
    # Only queries are ever read with these weights: the few examples are in the classifier already.
    queries = {name: images for name, images in sets.items() if name != "train"}
    head = None if request.given["head"] is None else read_head(Path(request.given["head"]))
    return _train_on_images(request, sets, train_finetuned, draw=draw, head=head), _extract(request, queries)


def _train_on_rows(request: Request) -> Trained:
    given = request.require("store")
    store = given if isinstance(given, ActivationStore) else actstore.open(given)
    rows, categories = store[request.given["train_split"] or "train"], request.categories(store.classes)
    settings = request.settings(*(OPTIONS[request.name] - {"store", "train_split"}))
    names = (*categories.base, *categories.novel) if request.name == "oracle" else categories.base
    kind, config = ON_ROWS[request.name]
    return train_on_rows(kind, request.name, rows, names, request.folder, config(**settings), **request.run)


def _train_on_tasks(request: Request, sets: Sets) -> Trained:
    base = request.categories(_classes(sets)).base
    size = request.given["image_size"] or min(LARGEST, *next(iter(sets.values())).items[0].load().size)
    changed = request.settings(*(OPTIONS[request.name] - {"images", "image_size", "workers"}))
    config = choose_meta_config(request.name, image_size=size, **changed)
    examples = decode_classes(sets, base, size, request.workers, request.bars.decoded)
    return train_learner(config, examples, request.given["images"], request.folder, **request.run)


def _train_on_images(request: Request, sets: Sets, train: Callable[..., Trained], **more: Any) -> Trained:
    weights = request.given["weights"]
    backbone = load_backbone(request.backbone, None if weights is None else Path(weights))
    categories = request.categories(_classes(sets))
    config = ImageConfig(**request.settings("steps", "batch_size", "learning_rate", "flip"))
    run = ImageRun(workers=request.workers, decoded=request.bars.decoded, **request.run)
    trained = train(sets, categories, backbone, request.folder, config, run=run, **more)
    request.bars.close()
    return trained


def _classes(sets: Sets) -> list[str]:
    return sorted({name for images in sets.values() for name in images.classes})


def _extract(request: Request, sets: Sets) -> dict[str, str]:
    """OUT/store.zarr, with the weights that were just trained; an interrupted one is completed."""
    if request.given["extract"] is False:
        return {}
    if not sets:
        note("no split beside train: there are no queries to extract", request.progress)
        return {}
    store, weights = request.folder / STORE, request.folder / WEIGHTS
    if request.given["restart"] and (store / "zarr.json").exists():
        shutil.rmtree(store)
    backbone = load_backbone(request.backbone, weights)
    options = BuildOptions(request.given["device"], workers=request.workers, weights=str(weights.resolve()))
    with SplitBars("extract", "images", request.progress) as bars:
        build(sets, request.given["images"], store, backbone, options, bars)
    return {"store": str(store)}
