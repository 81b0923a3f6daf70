"""Learning like a Child and the fine-tuned classifier against autograd and torch's own SGD."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn
from torch.nn import functional

import actstore
from actstore.backbones.head import Head
from actstore.category_split import CategorySplit
from actstore.errors import InvalidInputError
from actstore.methods import Support
from baselines.child import Child
from baselines.finetune_head import FineTunedHead
from baselines.large_sample import LargeSample, RowTraining

SPLIT = CategorySplit(("c4", "c0", "c2", "c5"), ("c1", "c3"))
CONFIG = RowTraining(steps=12, batch_size=20, learning_rate=2.0)


@pytest.fixture
def head() -> Head:
    random = torch.Generator().manual_seed(2)
    return Head(torch.randn(4, 16, generator=random), torch.randn(4, generator=random), SPLIT.base)


def plain_sgd(
    parameters: Iterable[nn.Parameter],
    logits: Callable[[torch.Tensor], torch.Tensor],
    sample: LargeSample,
    support: Support,
) -> None:
    """Cross entropy over all six categories, each with a sixth of the weight."""
    optimiser = torch.optim.SGD(parameters, lr=1.0, momentum=CONFIG.momentum)
    examples = support.activations.flatten(0, 1)
    targets = 4 + torch.arange(2).repeat_interleave(support.shots)
    for step, batch in enumerate(sample.batches(CONFIG.batch_size, CONFIG.steps)):
        large = functional.cross_entropy(logits(sample.activations[batch]), sample.targets[batch])
        few = functional.cross_entropy(logits(examples), targets)
        cosine = (1 + math.cos(math.pi * step / CONFIG.steps)) / 2
        length = float(sample.activations.square().sum(1).mean())
        optimiser.param_groups[0]["lr"] = 6 * CONFIG.learning_rate / length * cosine
        optimiser.zero_grad()
        (4 / 6 * large + 2 / 6 * few).backward()
        optimiser.step()


@pytest.mark.parametrize("shots", [1, 3])
def test_a_child_trains_the_novel_rows_by_sgd_and_no_other(
    train: actstore.Split, queries: torch.Tensor, draw: Callable[..., Support], head: Head, shots: int
) -> None:
    sample, support = LargeSample(train, SPLIT.base), draw(shots)
    weight, bias = nn.Parameter(torch.zeros(2, 16)), nn.Parameter(torch.zeros(2))
    both = lambda inputs: torch.cat([head.scores(inputs), inputs @ weight.T + bias], 1)  # noqa: E731
    plain_sgd([weight, bias], both, sample, support)
    method = Child(train, SPLIT.base, head, sample, CONFIG)
    torch.testing.assert_close(method.scores(queries, support), both(queries).detach(), rtol=1e-4, atol=1e-4)
    assert torch.equal(method.base_scores(queries), head.scores(queries))
    assert (method.name, method.finetuned) == ("Learning like a Child", True)


def test_the_fine_tuned_classifier_trains_all_rows(
    train: actstore.Split, queries: torch.Tensor, draw: Callable[..., Support], head: Head
) -> None:
    sample, support = LargeSample(train, SPLIT.base), draw(2)
    layer = nn.Linear(16, 6)
    with torch.no_grad():
        layer.weight.copy_(torch.cat([head.weight, torch.zeros(2, 16)]))
        layer.bias.copy_(torch.cat([head.bias, torch.zeros(2)]))
    plain_sgd(layer.parameters(), layer, sample, support)
    method = FineTunedHead(train, SPLIT.base, head, sample, CONFIG)
    torch.testing.assert_close(method.scores(queries, support), layer(queries).detach(), rtol=1e-4, atol=1e-4)
    assert torch.equal(method.scores(queries, support), method.scores(queries, support))


def test_a_sample_is_spread_over_the_classes(train: actstore.Split) -> None:
    whole, some = LargeSample(train, SPLIT.base), LargeSample(train, SPLIT.base, most_rows=40)
    assert whole.activations.shape == (120, 16)
    assert torch.bincount(some.targets).tolist() == [10, 10, 10, 10]
    assert torch.equal(whole.activations[:30], train.to_torch(train.class_index.rows(4)))  # c4 comes first


def test_a_head_of_other_classes_is_refused(train: actstore.Split, head: Head) -> None:
    sample = LargeSample(train, SPLIT.base)
    other = Head(head.weight, head.bias, ("c0", "c1", "c2", "c3"))
    for make in (Child, FineTunedHead):
        with pytest.raises(InvalidInputError, match="no row for base class 'c4'"):
            make(train, SPLIT.base, other, sample)
