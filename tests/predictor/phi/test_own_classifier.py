"""The network's own classifier as the base: scores, table rows and calibration without any training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import actstore
from predictor.phi.rule import OwnClassifier
from predictor.protocol.base_categories import BaseCategories, class_means
from predictor.protocol.calibration import fit_calibrations
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.evaluation import all_way_task, measure
from predictor.protocol.head import Head
from predictor.protocol.stand_ins import StandInSource

pytestmark = pytest.mark.numeric


@pytest.fixture
def head(store: actstore.ActivationStore, categories: CategorySplit) -> Head:
    """Linear discriminants, good enough for a classifier of the base."""
    means = class_means(store["train"], categories.base).double()
    centre = means.mean(0)
    weight = 4 * (means - centre)
    return Head(weight.float(), (-(means + centre) * (means - centre)).sum(1).mul(2).float(), categories.base)


def test_scores_equal_a_loop(store: actstore.ActivationStore, categories: CategorySplit, head: Head) -> None:
    task = all_way_task(store["train"], store["val"], categories)
    means = class_means(store["train"], categories.base)
    support, queries = task.support(3, 0, 0).activations, task.queries.activations
    method = OwnClassifier(head)
    method.prepare(task.base_categories)
    found = method.scores(queries, support).double().numpy()
    assert found.shape == (len(queries), 7 + 3)
    centre = means.double().numpy().mean(0)
    for row, query in enumerate(queries.double().numpy()):
        expected = list(head.weight.double().numpy() @ query + head.bias.double().numpy())
        for examples in support.double().numpy():
            direction = examples.mean(0) - centre
            expected.append((query - centre) @ direction / np.linalg.norm(direction))
        np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-3)


def test_calibrated_it_has_a_row_of_its_own_and_the_same_area(
    store: actstore.ActivationStore, categories: CategorySplit, head: Head
) -> None:
    train = store["train"]
    task = all_way_task(train, store["val"], categories)
    fits = fit_calibrations([OwnClassifier(head)], StandInSource(train, categories, 3), [1, 3], tasks=5)
    held = [replace(fit, failed="") for fit in fits]  # two stand-ins of seven categories tell little
    one, other = measure(OwnClassifier(head), task, [1], draws=4, fits=held)
    plain, calibrated = one.method, other.method
    assert (plain.key, plain.variant, calibrated.key, calibrated.variant) == ("head", "", "head", "calibrated")
    assert calibrated.name == f"{plain.name}, calibrated"
    assert other.mean["ausuc"] == pytest.approx(one.mean["ausuc"])
    assert other.mean["harmonic_mean"] > one.mean["harmonic_mean"]
    assert fits[0].fitted_on.startswith("5 tasks of base categories as stand-ins; training rows")


def test_familiarity_is_by_the_cosine_about_the_centre(
    store: actstore.ActivationStore, categories: CategorySplit, head: Head
) -> None:
    means = class_means(store["train"], categories.base)
    queries = torch.rand(4, 16, generator=torch.Generator().manual_seed(0))
    expected = (queries - means.mean(0)).norm(dim=1)
    method = OwnClassifier(head)
    method.prepare(BaseCategories.of_split(store["train"], categories.base))
    torch.testing.assert_close(method.query_lengths(queries), expected)
