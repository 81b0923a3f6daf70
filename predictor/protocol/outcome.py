"""What a recogniser got right in an all-way task, and what it would get right with another novel bias.

A constant g added to every novel score trades base accuracy for novel accuracy. Each query tells the g at which its
outcome changes, so the whole trade-off curve comes out exactly, without trying values of g.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.tensors import one_thread
from actstore.errors import InvalidInputError

TOP = 5
CURVE = 20  # points of a trade-off by either accuracy


@dataclass(frozen=True)
class Queries:
    """Test images of the base and of the novel categories.

    activations: (n, dim), the base ones first. base_targets: (n_base_query,) positions among the base categories;
    novel_targets: (n_novel_query,) positions among the novel ones.
    """

    activations: Tensor
    base_targets: Tensor
    novel_targets: Tensor


@dataclass(frozen=True)
class BaseSide:
    """What the base scores alone decide; shared by all draws of a support set.

    true_score, rank: (n_base_query,) of the true category among the base. best: (n_novel_query, <=5) highest base
    scores of the novel queries, descending. highest, lengths: (n,) of all queries, where known is to be told from
    unknown.
    """

    true_score: Tensor
    rank: Tensor
    best: Tensor
    highest: Tensor | None = None
    lengths: Tensor | None = None

    @classmethod
    def of(cls, base_scores: Tensor, queries: Queries, lengths: Tensor | None = None) -> BaseSide:
        """base_scores: (n, n_base) of all queries. lengths: as in `withheld_auroc`."""
        _refuse_nan(base_scores)
        count = len(queries.base_targets)
        true_score, rank = _true_score_and_rank(base_scores[:count], queries.base_targets)
        best = base_scores[count:].topk(min(TOP, base_scores.shape[1]), dim=1).values
        return cls(true_score, rank, best, None if lengths is None else base_scores.amax(1), lengths)


@dataclass(frozen=True)
class Outcome:
    """Ranks of the true category among all (0 is right), and the bias at which each query's answer changes.

    novel_rank counts no more than five base categories before it: exact below 5, and 5 or more where it should be.
    base_limit: (n_base_query,) a base query is right up to this bias, -inf where it never is. novel_limit:
    (n_novel_query,) a novel one is right above this bias, inf where it never is. auroc: of known against unknown
    with half of the novel categories withheld, 0 to 1; NaN where it was not measured.
    """

    base_rank: NDArray[np.int64]
    novel_rank: NDArray[np.int64]
    base_limit: NDArray[np.float64]
    novel_limit: NDArray[np.float64]
    auroc: float = float("nan")

    @classmethod
    @one_thread()  # for so little work threads wait for each other longer than they share
    def of(cls, base: BaseSide, novel_scores: Tensor, queries: Queries) -> Outcome:
        """novel_scores: (n, n_novel) of all queries."""
        _refuse_nan(novel_scores)
        count = len(base.rank)
        of_base, of_novel = novel_scores[:count], novel_scores[count:]
        base_rank = base.rank + (of_base > base.true_score[:, None]).sum(1)
        true_score, rank = _true_score_and_rank(of_novel, queries.novel_targets)
        novel_rank = rank + (base.best >= true_score[:, None]).sum(1)  # equal scores: the base comes first
        base_limit = (base.true_score - of_base.amax(1)).double()
        novel_limit = (base.best[:, 0] - true_score).double()
        auroc = float("nan")
        if base.highest is not None and base.lengths is not None:
            auroc = withheld_auroc(base.highest, novel_scores, queries.novel_targets, base.lengths)
        return cls(
            base_rank.numpy(),
            novel_rank.numpy(),
            base_limit.masked_fill_(base.rank > 0, -torch.inf).numpy(),
            novel_limit.masked_fill_(rank > 0, torch.inf).numpy(),
            auroc,
        )

    def of_queries(self, chosen: NDArray[np.bool_]) -> Outcome:
        """Of some of the queries (n,), those of the base first."""
        base, novel = chosen[: len(self.base_rank)], chosen[len(self.base_rank) :]
        return Outcome(self.base_rank[base], self.novel_rank[novel], self.base_limit[base], self.novel_limit[novel])

    def metrics(self) -> dict[str, float]:
        """In percent; see `METRICS`."""
        base, novel = _share(self.base_rank < 1), _share(self.novel_rank < 1)
        right = int((self.base_rank < 1).sum() + (self.novel_rank < 1).sum())
        alone = _share(self.base_limit > -np.inf), _share(self.novel_limit < np.inf)
        return {
            "top1_large": base,
            "top5_large": _share(self.base_rank < TOP),
            "top1_few": novel,
            "top5_few": _share(self.novel_rank < TOP),
            "harmonic_mean": harmonic_mean(base, novel),
            "joint": 100 * right / max(1, len(self.base_rank) + len(self.novel_rank)),
            "delta": ((base - alone[0]) + (novel - alone[1])) / 2,
            "ausuc": self.area(),
            "auroc": 100 * self.auroc,
            "best_harmonic_mean": self.best_harmonic_mean(),
        }

    def area(self) -> float:
        """Area under base against novel accuracy as the bias runs from -inf to inf, in percent of the square.

        Each novel query that can be right adds a step of 1/n_novel_query at its limit; the height there is the
        share of base queries that are right above that bias.
        """
        if not len(self.base_limit) or not len(self.novel_limit):
            return float("nan")
        steps = self.novel_limit[self.novel_limit < np.inf]
        above = len(self.base_limit) - np.searchsorted(np.sort(self.base_limit), steps, side="right")
        return 100 * float(above.sum()) / (len(self.base_limit) * len(self.novel_limit))

    def best_harmonic_mean(self) -> float:
        """Over all biases, in percent: right above each limit of a novel query."""
        steps = np.sort(self.novel_limit[self.novel_limit < np.inf])
        novel = np.arange(1, len(steps) + 1) / max(1, len(self.novel_limit))
        above = len(self.base_limit) - np.searchsorted(np.sort(self.base_limit), steps, side="right")
        base = above / max(1, len(self.base_limit))
        return 100 * float(np.max(2 * base * novel / np.maximum(base + novel, 1e-12), initial=0.0))

    def accuracies(self, biases: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Base and novel top-1 in percent at each bias added to the novel scores (n,) -> (n,), (n,)."""
        base = len(self.base_limit) - np.searchsorted(np.sort(self.base_limit), biases, side="left")
        novel = np.searchsorted(np.sort(self.novel_limit), biases, side="left")
        return 100 * base / max(1, len(self.base_limit)), 100 * novel / max(1, len(self.novel_limit))

    def curve(self) -> NDArray[np.float64]:
        """(2 CURVE + 2, 2) base and novel top-1 in percent: where all queries are taken for one side, where so many
        shares of the base queries that can be right are, and so many of the novel ones."""
        lowest, highest = np.finfo(np.float64).min, np.finfo(np.float64).max  # infinite limits stay beyond these
        biases = [np.array([lowest, highest])]
        for limits in (self.base_limit, self.novel_limit):
            right = np.sort(limits[np.isfinite(limits)])
            places = np.linspace(0, len(right) - 1, CURVE).astype(np.int64)
            biases.append(right[places] if len(right) else np.full(CURVE, highest))
        return np.stack(self.accuracies(np.concatenate(biases)), 1)


METRICS = {
    "top1_large": "top-1 on C_large",
    "top5_large": "top-5 on C_large",
    "top1_few": "top-1 on C_few",
    "top5_few": "top-5 on C_few",
    "harmonic_mean": "harmonic mean of both top-1",
    "joint": "top-1 over all test images",
    "delta": "mean loss of top-1 against knowing whether an image is base or novel",
    "ausuc": "area under base against novel top-1 over all novel biases",
    "auroc": "images of known against unknown categories, half of C_few withheld: area under the ROC curve",
    "best_harmonic_mean": "harmonic mean with the best novel bias of each draw: what no constant can exceed",
}


def harmonic_mean(base: float, novel: float) -> float:
    return 2 * base * novel / (base + novel) if base + novel > 0 else 0.0


def auroc(known: NDArray[Any], unknown: NDArray[Any]) -> float:
    """(n,) and (m,) -> the share of pairs in which the known one is higher, ties half; NaN where there is no pair."""
    if not len(known) or not len(unknown):
        return float("nan")
    ordered, asked = np.sort(unknown), np.sort(known)  # places of ascending values are found ten times as fast
    sides: tuple[Literal["left", "right"], ...] = ("left", "right")
    below = [np.searchsorted(ordered, asked, side=side).mean(dtype=np.float64) for side in sides]
    return float(sum(below) / (2 * len(ordered)))


def halves(count: int) -> list[NDArray[np.int64]]:
    """Positions of the categories that are known, once the even ones and once the odd ones; none where there is one."""
    return [] if count < 2 else [np.arange(count)[0::2], np.arange(count)[1::2]]


def withheld_auroc(base_highest: Tensor, novel_scores: Tensor, novel_targets: Tensor, lengths: Tensor) -> float:
    """How well images of known categories are told from those of unknown ones, with half of the novel categories
    withheld: mean over both halves, 0 to 1. An image is as familiar as its highest score among known categories.

    base_highest: (n,) highest base score of all queries, those of the base first. novel_scores: (n, n_novel).
    novel_targets: (n_novel_query,). lengths: (n,) of the queries, by which scores are divided, so that they compare
    between queries.
    """
    count = len(base_highest) - len(novel_targets)
    targets = novel_targets.numpy()
    areas = []
    for known in halves(novel_scores.shape[1]):
        best = torch.maximum(base_highest, novel_scores[:, known[0] :: 2].amax(1))  # a view, where numbers would copy
        familiar = (best / lengths).double().numpy()
        is_known = np.concatenate([np.ones(count, bool), np.isin(targets, known)])
        areas.append(auroc(familiar[is_known], familiar[~is_known]))
    return float(np.mean(areas)) if areas else float("nan")


def _refuse_nan(scores: Tensor) -> None:
    """A NaN is neither above nor below another score: it would pass for the right answer."""
    if scores.isnan().any():
        raise InvalidInputError("a score is NaN, so nothing can be ranked; was the method trained without diverging?")


def _true_score_and_rank(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Score of the target column, and how many columns come before it; of equal scores the lower column."""
    true_score = scores.gather(1, targets[:, None])
    earlier = torch.arange(scores.shape[1])[None, :] < targets[:, None]
    rank = (scores > true_score).sum(1) + ((scores == true_score) & earlier).sum(1)
    return true_score[:, 0], rank


def _share(right: NDArray[np.bool_]) -> float:
    return 100 * float(right.mean()) if len(right) else float("nan")
