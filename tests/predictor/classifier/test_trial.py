"""Draws of examples, the rest that they teach, and the figures of a trial."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from predictor.classifier.trial import draw_examples, rest_of, run_trial

from actstore.errors import InvalidInputError
from predictor.classifier.classifier import Classifier

DIM = 12


def make_rows(counts: list[int], noise: float, seed: int = 0) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {
        f"c{number}": torch.rand(DIM, generator=random) + noise * torch.randn(count, DIM, generator=random)
        for number, count in enumerate(counts)
    }


def alone() -> Classifier:
    return Classifier.alone(DIM)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 6), st.integers(0, 99))
def test_examples_and_the_rest_are_all_images_each_once(counts: list[int], shots: int, seed: int) -> None:
    rows = {f"c{number}": torch.zeros(count, 1) for number, count in enumerate(counts)}
    taught = draw_examples(rows, shots, (seed,))
    rest = rest_of(rows, taught)
    for (name, values), count in zip(rows.items(), counts, strict=True):
        assert sorted([*taught[name], *rest[name]]) == list(range(len(values)))
        assert len(taught[name]) == max(1, min(shots, count - 1))
    assert {name: places.tolist() for name, places in draw_examples(rows, shots, (seed,)).items()} == {
        name: places.tolist() for name, places in taught.items()
    }


def test_separate_categories_are_learnt_and_noise_is_not() -> None:
    easy = run_trial(alone, make_rows([8] * 6, 0.01), 1)
    assert (easy.accuracy, easy.tested, easy.auroc) == (1.0, 5 * 6 * 7, 1.0)
    hard = run_trial(alone, make_rows([8] * 6, 3.0), 1)
    assert hard.accuracy < 0.6
    assert hard.auroc is not None
    assert 0.2 < hard.auroc < 0.8
    assert 0 <= hard.accepted <= 1


def test_fewer_than_four_categories_have_no_unknown() -> None:
    found = run_trial(alone, make_rows([4, 1, 3], 0.01), 3)
    assert (found.refused, found.auroc) == (None, None)
    assert found.tested == 5 * (1 + 0 + 1)


def test_one_photo_of_most_leaves_nothing_known_to_test() -> None:
    found = run_trial(alone, make_rows([1, 1, 1, 1, 1, 1, 2], 0.01), 1)
    assert found.refused is not None
    assert found.auroc is None or 0 <= found.auroc <= 1


@pytest.mark.parametrize("counts", [[5], [1, 1, 1]])
def test_nothing_to_test(counts: list[int]) -> None:
    with pytest.raises(InvalidInputError, match="a trial needs two categories"):
        run_trial(alone, make_rows(counts, 0.1), 1)
