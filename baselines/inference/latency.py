"""What recognising one image costs: by predicted parameters (a linear layer), and by nearest neighbours.

The "Efficiency Analysis" of Qiao, Liu, Shen and Yuille, CVPR 2018: 6.83 ms per image by parameters at batch 32, and
37.867 ms by nearest neighbours over 45 GB of precomputed features, on a Tesla K40M.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actstore.bench.measure import seconds
from actstore.compute.device import synchronise

WARM_UP, LEAST_RUNS, MOST_RUNS = 1, 3, 50


@dataclass(frozen=True)
class Part:
    """Something that takes time: a backbone, a classifier, or a search.

    run: a batch of queries (n, dim), or images, -> anything. bytes: memory it holds. recall: of the nearest row,
    where it may be missed. rank: the last of its work, the order of the rows found in float64, alone.
    """

    name: str
    kind: str  # backbone, head or search
    run: Callable[[Tensor], Any]
    bytes: int
    recall: float | None = None
    rank: Callable[[Tensor], Any] | None = None


@dataclass(frozen=True)
class Latency:
    """Milliseconds per image at a batch size. ranking: those of them that the order of the rows found takes."""

    part: Part
    batch: int
    median: float
    p95: float
    runs: int
    ranking: float | None = None


def measure(
    parts: Sequence[Part], batch: int, inputs: Callable[[Part], Tensor], budget: float, device: torch.device
) -> list[Latency]:
    """Run parts in turns, so that a slow moment of the machine meets all of them. budget: seconds for each of them."""
    times: dict[str, list[float]] = {part.name: [] for part in parts}
    for turn in range(WARM_UP + MOST_RUNS):
        for part in parts:
            taken = times[part.name]
            if len(taken) >= LEAST_RUNS and sum(taken) > budget:
                continue
            took = timed(partial(part.run, inputs(part)[:batch]), device)
            if turn >= WARM_UP or took > budget:  # what is this slow needs no warming up
                taken.append(took)
    return [_summary(part, inputs(part)[:batch], times[part.name], device) for part in parts]


def timed(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds, until the device is done."""

    def wait() -> None:
        run()
        synchronise(device)

    return seconds(wait)


def _summary(part: Part, asked: Tensor, taken: list[float], device: torch.device) -> Latency:
    per_image, ranking = np.array(taken) * 1e3 / len(asked), None
    if part.rank is not None:
        ranks = [timed(partial(part.rank, asked), device) for _ in range(WARM_UP + LEAST_RUNS)]
        ranking = float(np.median(ranks[WARM_UP:])) * 1e3 / len(asked)
    median, late = float(np.median(per_image)), float(np.quantile(per_image, 0.95))
    described = replace(part, run=_was_run, rank=None)  # figures keep no rows in memory
    return Latency(described, len(asked), median, late, len(taken), ranking)


def _was_run(_: Tensor) -> None:
    raise RuntimeError("a part that was measured is gone")
