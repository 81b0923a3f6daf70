"""Trainings on rows of a store: once, or on those held in memory for every draw of the support."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actstore.compute.device import steps_per_reading
from actstore.compute.tensors import borrow
from actstore.search.by_class import ClassRows
from actstore.split import Split
from actstore.streams.sampling import Stream, generator
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.head import Head, head_for
from predictor.protocol.method import ALL, Method
from predictor.training import Trained, Trainee, cosine
from predictor.training import train as run

MOST_ROWS = 50_000  # 410 MB at 2048 dimensions; all of D_large of mini-ImageNet, 55 rows of each of ImageNet's 900


@dataclass(frozen=True)
class RowTraining:
    """How rows of a classifier are trained, from 0 for the novel categories.

    Every category has the same weight in the loss. Our choice, the paper does not say: at natural frequency (one
    example beside 500 rows of each base category) Child's novel top-1 was 0.00 in the three runs tried, of up to
    1,000 steps at 1 shot. learning_rate: per category, since each has its share of the loss, and for activations of
    length 1; falling to 0. What counts is the rate times the steps: 1,000 steps at a fifth of it give the same.

    Tried on validation categories, 16 of mini-ImageNet and 50 of the birds, at 1, 3 and 5 examples: a fifth of the rate
    loses 0.3 to 8.8 points of AUSUC, and twice the steps lose 0.2 to 1.0 on mini-ImageNet. It serves all methods.
    """

    steps: int = 200
    batch_size: int = 256
    learning_rate: float = 0.07
    momentum: float = 0.9

    def rate(self, step: int, mean_square: float, categories: int) -> float:
        """Of one step, for activations of this mean squared length."""
        return categories * self.learning_rate / mean_square * cosine(step, self.steps)


class LargeSample:
    """activations (n, dim) float32 of the base categories and their targets (n,), places among these, on the device
    where rows are trained.

    share: of D_large, in words.
    """

    def __init__(self, activations: Tensor, targets: Tensor, seed: int = 0, share: str = ALL) -> None:
        self.activations, self.targets, self.share, self._seed = activations, targets, share, seed
        self.mean_square = float(activations.square().sum(dim=1).mean())  # of the activations' length

    @classmethod
    def of_base(
        cls,
        base: BaseCategories,
        seed: int = 0,
        most_rows: int = MOST_ROWS,
        device: torch.device = torch.device("cpu"),  # noqa: B008 - a constant
    ) -> LargeSample:
        share = min(1.0, most_rows / len(base.draw().rows))
        chosen = base.draw(share, seed)
        counts = torch.from_numpy(chosen.offsets).diff()
        targets = torch.arange(len(base.names)).repeat_interleave(counts)
        said = f"{share:.0%}" if share == 1 else f"{100 * share:.2g}%"
        return cls(base.take(chosen.rows).to(device), targets.to(device), seed, said)

    def batches(self, size: int, steps: int) -> Tensor:
        """(steps, size) places in the sample; the same for every draw of the support. Sent at once: a device would wait
        for those of a single step."""
        streams = [generator(self._seed, step, Stream.LARGE_SAMPLE) for step in range(steps)]
        places = [random.integers(0, len(self.targets), size) for random in streams]
        return torch.from_numpy(np.array(places, np.int64)).to(self.targets.device)

    def flatten(self, support: Tensor) -> tuple[Tensor, Tensor]:
        """(ways * shots, dim) examples and the places of their categories, on the device of the sample."""
        ways, shots, _ = support.shape
        device = self.targets.device
        return support.flatten(0, 1).to(device), torch.arange(ways, device=device).repeat_interleave(shots)


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
        device: torch.device = torch.device("cpu"),  # noqa: B008 - a constant
    ) -> None:
        self._given, self._seed, self._config, self._device = head, seed, config, device

    def prepare(self, base: BaseCategories) -> None:
        self.base = base
        key = (LargeSample, self._seed, self._device)
        self.prepare_with(
            base.once(key, lambda: LargeSample.of_base(base, self._seed, device=self._device)), base.names
        )

    def prepare_with(self, sample: LargeSample, names: Sequence[str]) -> None:
        """names: of the base categories, in the order of the sample's targets."""
        self._sample = sample
        self.share, self.paper_share = sample.share, ALL
        self._head = head_for(self._given, names, sample.activations.shape[1])

    def train_rows(self, weight: Tensor, bias: Tensor, support: Tensor, slope: Slope) -> None:
        """Change these rows in place, by SGD on the cross entropy over all categories."""
        config, sample, n_novel = self._config, self._sample, len(support)
        examples, categories = sample.flatten(support)[0], n_novel + len(self._head.weight)
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


class RowTrainee(Trainee):
    """A trainee on rows of these classes. config: a dataclass of its settings."""

    _config: Any

    def __init__(self, train: Split, names: Sequence[str], config: Any, device: torch.device) -> None:
        self._train, self._names, self._config, self._device = train, tuple(names), config, device
        self.steps_per_reading = steps_per_reading(device)
        self._labels = train.class_index.positions(names)
        self._by_class = ClassRows.of(train.class_index, self._labels)  # refuses a class without rows

    @staticmethod
    def steps(train: Split, names: Sequence[str], config: Any) -> tuple[int, int]:
        """How many there are, and how many a line of the log is of."""
        return config.steps, 100

    def _learn(self, module: nn.Module) -> None:
        config = self._config
        self.module = module.to(self._device)
        self.optimiser = torch.optim.SGD(
            module.parameters(), config.learning_rate, config.momentum, weight_decay=config.weight_decay
        )

    def _take(self, rows: NDArray[np.int64]) -> Tensor:
        """(n, dim) float32 on the device."""
        return borrow(self._train.take(rows)).to(self._device).float()


def train_on_rows(
    kind: type[RowTrainee], method: str, train: Split, names: Sequence[str], folder: Path, config: Any,
    device: torch.device = torch.device("cpu"),  # noqa: B008 - a constant
    **how: Any,
) -> Trained:  # fmt: skip
    """A training that depends on these settings and the rows of these classes. how: options and report, as the training
    loop takes them."""
    identity = {
        "method": method,
        "config": asdict(config),
        "split": {"classes": list(names)},
        "data": {"content": train.content},
    }
    make = partial(kind, train, names, config, device)
    return run(folder, identity, make, *kind.steps(train, names, config), **how)
