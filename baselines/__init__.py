"""One baseline per file, each with its citation on top; `baselines.make` makes them by name.

import baselines
methods = baselines.make("nn", "class-mean", "simple-shot")     # those that need no training
methods = baselines.make("all", train=store["train"], split=split, runs="runs")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from baselines.learners import read_learners
    from baselines.method_names import CALIBRATED, EPISODE_NAMES, NAMES, TRAINED, require_names
    from baselines.registry import make, make_for_episodes

_HOMES = {  # loaded on first use: most wait for torch
    "CALIBRATED": "baselines.method_names",
    "EPISODE_NAMES": "baselines.method_names",
    "NAMES": "baselines.method_names",
    "TRAINED": "baselines.method_names",
    "make": "baselines.registry",
    "make_for_episodes": "baselines.registry",
    "read_learners": "baselines.learners",
    "require_names": "baselines.method_names",
}
__all__ = [
    "CALIBRATED",
    "EPISODE_NAMES",
    "NAMES",
    "TRAINED",
    "make",
    "make_for_episodes",
    "read_learners",
    "require_names",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'baselines' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
