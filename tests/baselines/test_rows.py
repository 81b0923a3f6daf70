"""Learning like a Child and the fine-tuned classifier against autograd and torch's own SGD."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import actstore
from actstore.errors import InvalidInputError
from baselines.child import Child
from baselines.class_mean import ClassMean
from baselines.finetune import FinetunedEpisode, FineTunedHead
from baselines.imprint import Imprint
from baselines.large_sample import LargeSample, RowTraining
from baselines.nearest_neighbour import NearestNeighbour
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.head import Head

pytestmark = pytest.mark.numeric

SPLIT = CategorySplit(("c4", "c0", "c2", "c5"), ("c1", "c3"))
CONFIG = RowTraining(steps=12, batch_size=20, learning_rate=2.0)


@pytest.fixture
def head() -> Head:
    random = torch.Generator().manual_seed(2)
    weight, bias = (torch.randn(shape, generator=random, dtype=torch.float64) for shape in ((4, 16), (4,)))
    return Head(weight, bias, SPLIT.base)


@pytest.fixture
def sample(base: BaseCategories) -> LargeSample:
    """In float64: a training would make more of what processors round differently."""
    found = base.once((LargeSample, 0, torch.device("cpu")), lambda: LargeSample.of_base(base))
    found.activations = found.activations.double()
    found.mean_square = float(found.activations.square().sum(1).mean())
    return found


def plain_sgd(
    parameters: Iterable[nn.Parameter],
    logits: Callable[[torch.Tensor], torch.Tensor],
    sample: LargeSample,
    support: torch.Tensor,
) -> None:
    """Cross entropy over all six categories, each with a sixth of the weight."""
    optimiser = torch.optim.SGD(parameters, lr=1.0, momentum=CONFIG.momentum)
    examples = support.flatten(0, 1)
    targets = 4 + torch.arange(2).repeat_interleave(support.shape[1])
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
    base: BaseCategories,
    queries: torch.Tensor,
    draw: Callable[..., torch.Tensor],
    head: Head,
    sample: LargeSample,
    shots: int,
) -> None:
    support, queries = draw(shots).double(), queries.double()
    weight, bias = (nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in ((2, 16), (2,)))
    both = lambda inputs: torch.cat([head.scores(inputs), inputs @ weight.T + bias], 1)  # noqa: E731
    plain_sgd([weight, bias], both, sample, support)
    method = Child(head, config=CONFIG)
    method.prepare(base)
    torch.testing.assert_close(method.scores(queries, support), both(queries).detach(), rtol=1e-9, atol=1e-9)
    assert torch.equal(method.base_scores(queries), head.scores(queries))
    assert (method.name, method.finetuned) == ("Learning like a Child", True)


def test_the_fine_tuned_classifier_trains_all_rows(
    base: BaseCategories, queries: torch.Tensor, draw: Callable[..., torch.Tensor], head: Head, sample: LargeSample
) -> None:
    support, queries = draw(2).double(), queries.double()
    layer = nn.Linear(16, 6, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.cat([head.weight, torch.zeros(2, 16)]))
        layer.bias.copy_(torch.cat([head.bias, torch.zeros(2)]))
    plain_sgd(layer.parameters(), layer, sample, support)
    method = FineTunedHead(head, config=CONFIG)
    method.prepare(base)
    torch.testing.assert_close(method.scores(queries, support), layer(queries).detach(), rtol=1e-9, atol=1e-9)
    assert torch.equal(method.scores(queries, support), method.scores(queries, support))


def test_a_sample_is_spread_over_the_classes(train: actstore.Split, base: BaseCategories) -> None:
    whole, some = LargeSample.of_base(base), LargeSample.of_base(base, most_rows=40)
    assert whole.activations.shape == (120, 16)
    assert torch.bincount(some.targets).tolist() == [10, 10, 10, 10]
    assert torch.equal(whole.activations[:30], train.to_torch(train.class_index.rows(4)))  # c4 comes first


def test_a_head_of_other_classes_is_refused(base: BaseCategories, head: Head) -> None:
    other = Head(head.weight, head.bias, ("c0", "c1", "c2", "c3"))
    for make in (Child, FineTunedHead):
        with pytest.raises(InvalidInputError, match="no row for base class 'c4'"):
            make(other).prepare(base)


def test_each_task_is_trained_as_by_torch() -> None:
    random = torch.Generator().manual_seed(0)
    support = torch.rand(2, 3, 4, 6, generator=random, dtype=torch.float64)
    queries = torch.rand(2, 5, 6, generator=random, dtype=torch.float64)
    scores = FinetunedEpisode(steps=30, rate=0.1).episode_scores(support, queries)
    targets = torch.arange(3).repeat_interleave(4)
    for task in range(2):
        layer = torch.nn.Linear(6, 3, dtype=torch.float64)
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        optimiser = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)
        for _ in range(30):
            optimiser.zero_grad()
            functional.cross_entropy(layer(support[task].flatten(0, 1)), targets).backward()
            optimiser.step()
        torch.testing.assert_close(scores[task], layer(queries[task]).detach(), rtol=1e-9, atol=1e-9)


def test_methods_that_score_categories_apart_do() -> None:
    """A category's score does not change with the company it is in; that of a trained softmax does."""
    random = torch.Generator().manual_seed(0)
    support, queries = (torch.rand(shape, generator=random).double() for shape in ((2, 4, 3, 16), (2, 9, 16)))
    for method in (NearestNeighbour(), ClassMean(), Imprint()):
        assert method.scores_categories_apart
        together = method.episode_scores(support, queries)
        for place in range(4):
            alone = method.episode_scores(support[:, place : place + 1], queries)
            torch.testing.assert_close(together[:, :, place : place + 1], alone)
    coupled = FinetunedEpisode().episode_scores(support, queries)[:, :, :2].numpy()
    assert np.abs(coupled - FinetunedEpisode().episode_scores(support[:, :2], queries).numpy()).max() > 1e-3
