"""A classifier of cosines, and the plain one that it leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from predictor.training.backbones.layers import CosineClassifier
from tests.predictor.training.backbones.tiny import TINY, train, weights_of


def activations(seed: int = 0) -> torch.Tensor:
    return torch.rand(50, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


def test_only_directions_count() -> None:
    classifier = CosineClassifier(nn.Linear(16, 7)).double()
    logits = classifier(activations())
    assert logits.shape == (50, 7)
    assert float(logits.detach().abs().max()) <= 10
    torch.testing.assert_close(classifier(5 * activations()), logits)
    with torch.no_grad():
        classifier.weight *= torch.arange(1, 8)[:, None]
    torch.testing.assert_close(classifier(activations()), logits)


def test_the_plain_classifier_orders_classes_alike() -> None:
    classifier = CosineClassifier(nn.Linear(16, 7)).double()
    for _ in range(2000):
        classifier(activations())
    assert float(classifier.length) == pytest.approx(float(activations().norm(dim=1).mean()), rel=0.01)
    classifier.eval()
    plain, before = classifier.linear_tensors(), float(classifier.length)
    cosines, linear = classifier(activations(1)).detach(), activations(1) @ plain["fc.weight"].T + plain["fc.bias"]
    assert torch.equal(cosines.argsort(1), linear.argsort(1))
    assert float((linear / cosines).median()) == pytest.approx(1, abs=0.2)
    assert float(classifier.length) == before


def test_a_training_leaves_a_plain_network(tmp_path: Path) -> None:
    train(tmp_path, replace(TINY, cosine=True))
    weights = weights_of(tmp_path)
    assert weights["fc.weight"].shape == (9, 256)
    assert weights["fc.bias"].count_nonzero() == 0
