"""Learners of image tasks that were trained with `ppa baseline`, read back with the images they are measured on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from actstore.compute.device import parse_device
from actstore.errors import InvalidInputError
from actstore.images.opening import open_images
from baselines.image_tasks import decode_classes
from baselines.meta_training import read_learner
from predictor.protocol.episodes import POOLED, Examples
from predictor.protocol.honesty import refuse_trained_on
from predictor.protocol.method import EpisodeMethod

Run = tuple[Examples, list[EpisodeMethod]]


def read_learners(
    folders: Sequence[str | Path],
    images: str | Path,
    novel: Sequence[str] | Callable[[Sequence[str]], Sequence[str]],
    splits: Sequence[str] | None = None,
    device: str = "auto",
) -> list[Run]:
    """For the argument `runs` of `predictor.run_episodes`: one run per learner, as each may see images of another
    size, or embeddings of its own.

    novel: the categories of tasks, or what chooses them among the class names; a learner that was trained on one of
    them is refused.
    """
    sets = open_images(str(images))
    names = list(splits) if splits else [name for name in POOLED if name in sets]
    if not names:
        raise InvalidInputError(f"choose splits of {images}: {', '.join(sets) or 'there are none'}")
    pooled = {name: sets[name] for name in names}
    if callable(novel):
        novel = novel(sorted({name for part in pooled.values() for name in part.classes}))
    decoded: dict[int, Examples] = {}
    runs: list[Run] = []
    for folder in map(Path, folders):
        learner, trained = read_learner(folder, parse_device(device))
        refuse_trained_on(folder, trained.identity["source"]["classes"], novel)
        size = learner.transform.crop
        if size not in decoded:
            decoded[size] = decode_classes(pooled, novel, size)
        examples, method = learner.prepared(decoded[size])
        runs.append((examples, [method]))
    return runs
