"""Learners of image tasks on glyphs: each against its untrained start and nearest neighbours on pixels, same tasks.

5-way 1-shot tasks of 100 categories that no learner has seen. `python -m tests.bench.meta --seconds 120` trains each
for two minutes; `--learner maml` one of them alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from actstore.compute.process import Result
from actstore.images.opening import open_images
from baselines.learners import MetaLearner, decode_classes
from baselines.meta_training import choose_meta_config, make_learner, read_learner, train_learner
from predictor.protocol.category_split import alphabetical_split
from predictor.protocol.episodes import EpisodeResult, Examples, TaskSize, run_episodes
from tests.bench.common import OUT, report

IMAGES, SIDE, TASKS, SIZE = "glyphs:1000x20x0", 28, 600, TaskSize(5, 1, 15)
CPU = torch.device("cpu")
SETTINGS: dict[str, dict[str, Any]] = {
    "matching": {"width": 32},
    "prototypical": {"width": 32},
    "maml": {"width": 32, "queries": 5, "learning_rate": 3e-3, "order": "first", "inner_steps": 3, "inner_rate": 0.4},
    "meta-lstm": {"width": 16, "queries": 5, "learning_rate": 3e-3, "inner_steps": 3, "first_rate": 0.4},
}


class PixelNeighbour:
    """Nearest neighbour by raw pixels."""

    def __init__(self, metric: Literal["cosine", "euclidean"]) -> None:
        self.name, self._metric = f"nearest neighbour on pixels, {metric}", metric

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        shown, asked = support.flatten(3).float().flatten(1, 2), queries.flatten(2).float()  # (tasks, way * shots, dim)
        if self._metric == "cosine":
            shown, asked = functional.normalize(shown, dim=2), functional.normalize(asked, dim=2)
        scores = -torch.cdist(asked, shown)  # of unit vectors in the order of their cosines
        return scores.unflatten(2, support.shape[1:3]).amax(3)


def measure(learner: MetaLearner, novel: Examples) -> EpisodeResult:
    examples, method = learner.prepared(novel)
    return run_episodes([method], examples, SIZE, TASKS)[0]


def compare(name: str, base: Examples, novel: Examples, seconds: float, pixels: float) -> list[Result]:
    config = choose_meta_config(name, image_size=SIDE, seconds=seconds, steps=1_000_000, **SETTINGS[name])
    folder = OUT / "meta" / name
    shutil.rmtree(folder, ignore_errors=True)
    before = measure(make_learner(config), novel)
    train_learner(config, base, IMAGES, folder, CPU)
    learner, trained = read_learner(folder, CPU)
    after = measure(learner, novel)
    load = os.getloadavg()[0]
    print(
        f"{learner.name}: {100 * before.accuracy:.2f} ± {100 * before.ci95:.2f} untrained, "
        f"{100 * after.accuracy:.2f} ± {100 * after.ci95:.2f} after {trained.steps:,} steps in {trained.seconds:.0f} s "
        f"(load {load:.1f}, {torch.get_num_threads()} threads); {TASKS} tasks scored in {after.seconds:.1f} s; "
        f"{config.to_json()}",
        flush=True,
    )
    return [
        Result(f"{learner.name}, 5-way 1-shot", 100 * after.accuracy, "%", peer, 100 * other, after.accuracy / other)
        for peer, other in (("untrained", before.accuracy), ("pixels", pixels))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="of training, for each learner")
    parser.add_argument("--learner", choices=SETTINGS, action="append")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    sets, began = open_images(IMAGES), time.perf_counter()
    split = alphabetical_split(sets["train"].classes)
    base, novel = decode_classes(sets, split.base, SIDE), decode_classes(sets, split.novel, SIDE)
    print(
        f"{len(base.values):,} + {len(novel.values):,} glyphs drawn in {time.perf_counter() - began:.0f} s", flush=True
    )
    plain = run_episodes([PixelNeighbour("cosine"), PixelNeighbour("euclidean")], novel, SIZE, TASKS)
    for one in plain:
        print(f"{one.method}: {100 * one.accuracy:.2f} ± {100 * one.ci95:.2f}", flush=True)
    pixels = max(one.accuracy for one in plain)
    results = [
        result for name in given.learner or SETTINGS for result in compare(name, base, novel, given.seconds, pixels)
    ]
    report("meta", results, ["above its untrained start", "above nearest neighbour on pixels", "within 5 minutes each"])


if __name__ == "__main__":
    main()
