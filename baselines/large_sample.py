"""Rows of D_large held in memory, for methods that train again for every draw of the support."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from actstore.streams.sampling import Stream, generator
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.head import Head, head_for
from predictor.protocol.method import ALL, Method
from predictor.training.schedule import cosine

MOST_ROWS = 50_000  # 410 MB at 2048 dimensions; all of D_large of mini-ImageNet, 55 rows of each of ImageNet's 900


@dataclass(frozen=True)
class RowTraining:
    """How rows of a classifier are trained, from 0 for the novel categories.

    Every category has the same weight in the loss. Our choice, the paper does not say: at natural frequency (one
    example beside 500 rows of each base category) Child's novel top-1 was 0.00 in the three runs tried, of up to
    1,000 steps at 1 shot. learning_rate: per category, since each has its share of the loss, and for activations of
    length 1; falling to 0. Tried on 16 of mini-ImageNet's base categories that played novel ones (100-way); the same
    values serve both methods.
    """

    steps: int = 200
    batch_size: int = 256
    learning_rate: float = 0.014
    momentum: float = 0.9

    def rate(self, step: int, mean_square: float, categories: int) -> float:
        """Of one step, for activations of this mean squared length."""
        return categories * self.learning_rate / mean_square * cosine(step, self.steps)


class LargeSample:
    """activations (n, dim) float32 of the base categories and their targets (n,), places among these.

    share: of D_large, in words.
    """

    def __init__(self, base: BaseCategories, seed: int = 0, most_rows: int = MOST_ROWS) -> None:
        share = min(1.0, most_rows / len(base.draw().rows))
        chosen = base.draw(share, seed)
        self.share = share_text(share)
        self.activations = base.take(chosen.rows)
        self.targets = torch.arange(len(base.names)).repeat_interleave(torch.from_numpy(chosen.offsets).diff())
        self.mean_square = float(self.activations.square().sum(dim=1).mean())  # of the activations' length
        self._seed = seed

    def batches(self, size: int, steps: int) -> Iterator[Tensor]:
        """Places (size,) in the sample for every step; the same for every draw of the support."""
        for step in range(steps):
            random = generator(self._seed, step, Stream.LARGE_SAMPLE)
            yield torch.from_numpy(random.integers(0, len(self.targets), size))


# (logits, batch) -> of each row's loss by its logits; rows of the sample's batch, then the examples
Slope = Callable[[Tensor, Tensor], Tensor]


class ExtendedHead(Method):
    """A method that extends the backbone's own classifier by rows for the novel categories, trained for every draw."""

    finetuned = True

    def __init__(
        self,
        head: Head,
        seed: int = 0,
        config: RowTraining = RowTraining(),  # noqa: B008 - frozen
    ) -> None:
        self._given, self._seed, self._config = head, seed, config

    def prepare(self, base: BaseCategories) -> None:
        self.base = base
        self._sample = base.once((LargeSample, self._seed), lambda: LargeSample(base, self._seed))
        self.share, self.paper_share = self._sample.share, ALL
        self._head = head_for(self._given, base.names, base.dim)

    def train_rows(self, weight: Tensor, bias: Tensor, support: Tensor, slope: Slope) -> None:
        """Change these rows in place, by SGD on the cross entropy over all categories."""
        config, sample, n_novel = self._config, self._sample, len(support)
        examples, categories = flatten_support(support)[0], n_novel + len(self._head.weight)
        novel_share, count = n_novel / categories, config.batch_size
        shares = ((1 - novel_share) / count, count), (novel_share / len(examples), len(examples))
        importance = torch.cat([examples.new_full((rows, 1), share) for share, rows in shares])
        pushed, pushed_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        for step, batch in enumerate(sample.batches(count, config.steps)):
            inputs = torch.cat([sample.activations[batch], examples])
            slopes = slope(torch.addmm(bias, inputs, weight.T), batch) * importance
            rate = config.rate(step, sample.mean_square, categories)
            weight -= rate * pushed.mul_(config.momentum).add_(slopes.T @ inputs)
            bias -= rate * pushed_bias.mul_(config.momentum).add_(slopes.sum(dim=0))


def share_text(share: float) -> str:
    """A share of D_large as tables print it: "100%", "4.3%"."""
    return f"{share:.0%}" if share == 1 else f"{100 * share:.2g}%"


def flatten_support(support: Tensor) -> tuple[Tensor, Tensor]:
    """(n_novel * shots, dim) examples, in memory as the sample is, and the places of their categories."""
    n_novel, shots, _ = support.shape
    return support.flatten(0, 1).cpu(), torch.arange(n_novel).repeat_interleave(shots)
