"""How well a method tells images of known categories from those of unknown ones: half of the novel categories are
withheld, and the area under the ROC curve says how often an image of a known category looks more familiar."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def auroc(known: NDArray[Any], unknown: NDArray[Any]) -> float:
    """(n,) and (m,) -> the share of pairs in which the known one is higher, ties half; NaN where there is no pair."""
    if not len(known) or not len(unknown):
        return float("nan")
    ordered = np.sort(unknown)
    sides: tuple[Literal["left", "right"], ...] = ("left", "right")
    below = [np.searchsorted(ordered, known, side=side).mean(dtype=np.float64) for side in sides]
    return float(sum(below) / (2 * len(ordered)))


def halves(count: int) -> list[NDArray[np.int64]]:
    """Positions of the categories that are known, once the even ones and once the odd ones; none where there is one."""
    return [] if count < 2 else [np.arange(count)[0::2], np.arange(count)[1::2]]


def withheld_auroc(base_highest: Tensor, novel_scores: Tensor, novel_targets: Tensor, lengths: Tensor) -> float:
    """Mean over both halves, 0 to 1. An image is as familiar as its highest score among known categories is high.

    base_highest: (n,) highest base score of all queries, those of the base first. novel_scores: (n, n_novel).
    novel_targets: (n_novel_query,). lengths: (n,) of the queries, by which scores are divided, so that they compare
    between queries.
    """
    count = len(base_highest) - len(novel_targets)
    targets = novel_targets.numpy()
    found = []
    for known in halves(novel_scores.shape[1]):
        best = torch.maximum(base_highest, novel_scores[:, torch.from_numpy(known)].amax(1))
        familiar = (best / lengths).double().numpy()
        is_known = np.concatenate([np.ones(count, bool), np.isin(targets, known)])
        found.append(auroc(familiar[is_known], familiar[~is_known]))
    return float(np.mean(found)) if found else float("nan")
