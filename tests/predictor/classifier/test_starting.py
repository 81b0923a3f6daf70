"""What rows of the base tell: the threshold of unknown, and what the base loses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import actstore
from actstore.errors import InvalidInputError
from predictor.classifier.classifier import Classifier
from predictor.classifier.starting import SHOTS, BaseLoss, base_limits, base_rows, fit_unknown, highest_constant
from predictor.phi.network import Phi
from predictor.protocol.base_categories import class_means
from predictor.protocol.category_split import CategorySplit

pytestmark = pytest.mark.numeric
Rows = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture
def classifier(store: actstore.ActivationStore, categories: CategorySplit, make_phi: Callable[..., Phi]) -> Classifier:
    """Seven base categories, three taught from four examples each."""
    train = store["train"]
    made = Classifier.from_means(make_phi(strength=0.02), categories.base, class_means(train, categories.base))
    made.adapt_all({name: train.of_class(name)[:4] for name in categories.novel})
    return made


@pytest.fixture
def rows(store: actstore.ActivationStore, categories: CategorySplit) -> Rows:
    return base_rows(store["val"], categories.base)


def top1(classifier: Classifier, rows: Rows) -> float:
    return 100 * float((classifier.scores(rows[0]).argmax(1) == rows[1]).float().mean())


def test_rows_are_of_the_base_in_its_order(rows: Rows, store: actstore.ActivationStore) -> None:
    assert rows[0].shape == (7 * 8, 16)
    np.testing.assert_array_equal(rows[0][rows[1] == 0], store["val"].of_class("c6"))
    with pytest.raises(InvalidInputError, match="holds no row of a base category"):
        base_rows(store["val"], ("emu",))


@pytest.mark.parametrize("loss", [0.0, 2.0, 5.0, 20.0, 100.0])
def test_the_base_loses_at_most_the_budget_and_nearly_all_of_it(
    classifier: Classifier, rows: Rows, loss: float
) -> None:
    classifier.calibrate(0.3)
    limits = base_limits(classifier, *rows)
    kept = BaseLoss.at(highest_constant(classifier, limits, loss), limits)
    classifier.calibrate(kept.novel_bias)
    assert top1(classifier, rows) == pytest.approx(kept.beside)
    assert kept.loss <= loss + 1e-9
    step = 100 / len(rows[1])
    assert kept.loss > min(loss, kept.alone - step) - step - 1e-9  # one row more would be too much


def test_measuring_is_what_the_classifier_does(classifier: Classifier, rows: Rows) -> None:
    for bias in (-5.0, 0.0, 0.4, 5.0):
        classifier.calibrate(bias)
        found = BaseLoss.at(bias, base_limits(classifier, *rows))
        assert (found.novel_bias, found.beside) == (bias, pytest.approx(top1(classifier, rows)))
        alone = classifier.scores(rows[0])[:, :7].argmax(1) == rows[1]
        assert found.alone == pytest.approx(100 * float(alone.float().mean()))


def test_nothing_to_lose(classifier: Classifier, rows: Rows) -> None:
    with pytest.raises(InvalidInputError, match="from 0% to 100%, got 101%"):
        highest_constant(classifier, base_limits(classifier, *rows), 101)
    for name in list(classifier.support):
        classifier.remove(name)
    limits = base_limits(classifier, *rows)
    with pytest.raises(InvalidInputError, match="no category was taught yet"):
        highest_constant(classifier, limits, 2)
    assert BaseLoss.at(classifier.novel_bias, limits).loss == 0


def test_known_rows_are_accepted_as_promised(
    classifier: Classifier, rows: Rows, store: actstore.ActivationStore
) -> None:
    found = fit_unknown(classifier, store["train"], store["val"])
    assert tuple(found.prior) == SHOTS
    assert found.prior[5][0] > found.prior[1][0]  # more examples, closer to the next one
    assert found.base_threshold is not None
    cosines = classifier.cosines(rows[0])[:, :7].amax(1)
    assert 0.93 <= float((cosines >= found.base_threshold).float().mean()) <= 0.97
    classifier.set_unknown(found)
    taught = torch.cat([torch.from_numpy(store["val"].of_class(name)) for name in classifier.support])
    assert classifier.is_known(taught).float().mean() > 0.8
    assert not classifier.is_known(-torch.ones(1, 16)).any()
