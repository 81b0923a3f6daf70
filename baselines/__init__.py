"""One baseline per file, each with its citation on top; `baselines.make` makes them by name.

import baselines
methods = baselines.make("nn", "class-mean", "simple-shot")     # those that need no training
methods = baselines.make("all", train=store["train"], split=split, runs="runs")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily

if TYPE_CHECKING:
    from baselines.inference.timing import time_inference
    from baselines.learners import read_learners
    from baselines.method_names import CALIBRATED, EPISODE_NAMES, NAMES, require_names
    from baselines.registry import make, make_for_episodes
    from baselines.trainings import OPTIONS, train

__all__ = [
    "CALIBRATED",
    "EPISODE_NAMES",
    "NAMES",
    "OPTIONS",
    "make",
    "make_for_episodes",
    "read_learners",
    "require_names",
    "time_inference",
    "train",
]

# Loaded on first use: most wait for torch.
__getattr__, __dir__ = lazily(
    __name__,
    inference__timing="time_inference",
    learners="read_learners",
    method_names="CALIBRATED EPISODE_NAMES NAMES require_names",
    registry="make make_for_episodes",
    trainings="OPTIONS train",
)
