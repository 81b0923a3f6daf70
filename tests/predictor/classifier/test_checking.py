"""Leave-one-out over what a classifier was taught: as if each example were removed and the classifier made anew."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actstore.errors import InvalidInputError
from predictor.classifier.checking import check_support
from predictor.classifier.classifier import Classifier

DIM = 16


def taught(counts: dict[str, int], noise: float = 0.3, seed: int = 0) -> Classifier:
    random = torch.Generator().manual_seed(seed)
    found = Classifier.alone(DIM)
    centres = {name: torch.rand(DIM, generator=random) for name in counts}
    for name, count in counts.items():
        found.adapt(name, centres[name] + noise * torch.randn(count, DIM, generator=random))
    return found


def test_a_photo_in_the_wrong_folder_goes_wrong() -> None:
    found = taught({"a": 4, "b": 4, "c": 4}, noise=0.02)
    moved = found.support["b"][1].clone()
    found.adapt("c", moved, extend=True)
    check = check_support(found)
    (wrong,) = check.wrong
    assert (wrong.category, wrong.example, wrong.guesses[0].category) == ("c", 4, "b")
    assert check.accuracy == 12 / 13
    assert check.confusion.tolist() == [[4, 0, 0, 0], [0, 4, 0, 0], [0, 1, 4, 0]]
    assert (check.alike[0].one, check.alike[0].other, check.alike[0].mistaken) == ("b", "c", 1)
    assert len(check.alike) == 3


def test_every_example_is_counted_once_and_shares_are_probabilities() -> None:
    check = check_support(taught({"a": 3, "one": 1, "b": 5, "c": 2}, noise=0.6), top=99)
    assert (check.names, check.single) == (("a", "b", "c"), ("one",))
    assert check.confusion.sum(1).tolist() == [3, 5, 2]
    assert [(one.category, one.example) for one in check.examples] == [
        (name, place) for name, count in (("a", 3), ("b", 5), ("c", 2)) for place in range(count)
    ]
    for one in check.examples:
        assert sum(guess.probability for guess in one.guesses) == pytest.approx(1, abs=1e-5)
        assert one.guesses[0].probability == max(guess.probability for guess in one.guesses)
    assert [pair.mistaken for pair in check.alike] == sorted((pair.mistaken for pair in check.alike), reverse=True)
    taken = np.trace(check.confusion[:, :3]) / 10
    assert check.accuracy == pytest.approx(taken)


def test_base_categories_are_another_column() -> None:
    found = taught({"a": 3, "b": 3}, noise=0.02)
    found.base, found.base_parameters = ("known",), 50 * found.rows.weight[:1]
    found.base_bias = torch.zeros(1)
    found.calibrate(0.0)
    check = check_support(found)
    assert check.confusion.shape == (2, 3)
    assert check.confusion[:, 2].sum() == len([one for one in check.wrong if one.guesses[0].category == "known"]) > 0


@pytest.mark.parametrize(
    ("counts", "message"),
    [({}, "there is only none; give at least two"), ({"a": 3}, "there is only a"), ({"a": 1, "b": 1}, "one image")],
)
def test_nothing_to_check(counts: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        check_support(taught(counts))
