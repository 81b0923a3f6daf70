"""Who takes part in the table of `ppa episodes`, and the examples that tasks are drawn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from actstore import Split
from actstore.compute.device import parse_device
from actstore.images.opening import open_images
from baselines.class_mean import ClassMean
from baselines.finetune_episode import FinetunedEpisode
from baselines.image_tasks import decode_classes
from baselines.imprint import Imprint
from baselines.meta_training import read_learner
from baselines.nearest_neighbour import NearestNeighbour
from baselines.simple_shot import SimpleShot
from cli.ppa.recognition import choose_categories, choose_methods, refuse_leak
from predictor.phi.recogniser import PredictedParameters
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.episodes import Examples, Independent, gather_classes
from predictor.protocol.method import EpisodeMethod
from predictor.training.trained_phi import TrainedPhi

POOLED = ("train", "val", "test")  # of these, all that there are; the backbone saw no novel class in any of them
Run = tuple[Examples, list[EpisodeMethod]]  # methods that read the same examples


def pooled_names(have: Mapping[str, Any], named: str | None) -> list[str]:
    names = named.split(",") if named else [name for name in POOLED if name in have]
    if not names:
        raise click.UsageError(f"choose splits with --split: {', '.join(have) or 'there are none yet'}")
    return names


def activation_run(pooled: Sequence[Split], categories: CategorySplit, methods: str, phis: Sequence[TrainedPhi]) -> Run:
    """On rows of a store. methods: those that need no training of their own, with commas, or none."""
    novel = categories.novel
    known = _untrained(pooled[0], categories.base, novel)
    names = choose_methods(methods, known)
    takers = [*(known[name]() for name in names), *(_of_phi(phi, pooled[0], novel) for phi in phis)]
    if not takers:
        raise click.UsageError("nothing to measure: name --methods, --phi or --learner")
    return gather_classes(pooled, novel), takers


def _untrained(split: Split, base: Sequence[str], novel: Sequence[str]) -> dict[str, Callable[[], EpisodeMethod]]:
    """A task has no base categories: any one class stands in for them, where they are asked for nothing."""

    def imprint() -> EpisodeMethod:
        method = Imprint(split, novel[:1])
        method.name = "Imprinting"  # a task has no base rows to speak of
        return Independent(method)

    return {
        "nn": lambda: Independent(NearestNeighbour(split, novel[:1], name="Nearest Neighbor")),
        "class-mean": lambda: Independent(ClassMean(split, novel[:1])),
        "simple-shot": lambda: Independent(SimpleShot(split, base)),
        "imprint": imprint,
        "finetune": FinetunedEpisode,
    }


def _of_phi(trained: TrainedPhi, split: Split, novel: Sequence[str]) -> EpisodeMethod:
    """As in the authors' code: phi of the mean of the examples."""
    import torch

    trained.require_store(split)
    refuse_leak(trained.path.parent, trained.categories.base, novel)
    return Independent(PredictedParameters(trained.phi, torch.empty(0, split.dim), aggregate="mean"))


def image_runs(
    images: str, learners: Sequence[Path], split_file: Path | None, splits: str | None, device: str
) -> list[Run]:
    """One per learner, as each may see images of another size, or embeddings of its own."""
    sets = open_images(images)
    sets = {name: sets[name] for name in pooled_names(sets, splits)}
    novel = choose_categories(split_file, sorted({name for images in sets.values() for name in images.classes})).novel
    decoded: dict[int, Examples] = {}
    runs: list[Run] = []
    for folder in learners:
        learner, trained = read_learner(folder, parse_device(device))
        refuse_leak(folder, trained.identity["source"]["classes"], novel)
        size = learner.transform.crop
        if size not in decoded:
            decoded[size] = decode_classes(sets, novel, size)
        examples, method = learner.prepared(decoded[size])
        runs.append((examples, [method]))
    return runs
