from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from baselines.class_mean import ClassMean
from baselines.finetune_head import FinetunedEpisode
from baselines.imprint import Imprint
from baselines.nearest_neighbour import NearestNeighbour

pytestmark = pytest.mark.numeric


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
