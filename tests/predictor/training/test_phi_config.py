from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from actstore.errors import InvalidInputError
from predictor.training.phi import PRESETS, TrainConfig, choose_config


def test_the_papers_settings() -> None:
    paper = choose_config("paper", "phi2")
    assert (paper.epochs, paper.batches, paper.steps) == (300, 250, 75_000)
    assert (paper.learning_rate, paper.weight_decay, paper.momentum, paper.p_mean) == (1e-3, 5e-4, 0.9, 0.9)
    assert {paper.rate(step) for step in (0, 12_500, 43_750, 74_999)} == {1e-3}


def test_the_settings_of_the_authors_code() -> None:
    code = choose_config("code", "phi2")
    assert (code.epochs, code.batches, code.p_mean) == (50, 250, 0.3)
    assert (code.learning_rate, code.weight_decay, code.momentum) == (1e-3, 5e-4, 0.9)
    assert (code.input_norm, code.bias, code.query_norm) == (True, True, False)
    assert {code.rate(step) for step in range(0, code.steps, 250)} == {1e-3}  # the shipped run ends before it falls


@pytest.mark.parametrize(
    ("first", "last", "rate"), [(0, 49, 1e-3), (50, 119, 5e-4), (120, 174, 1e-4), (175, 299, 1e-5)]
)
def test_the_schedule_of_the_authors_code(first: int, last: int, rate: float) -> None:
    code = choose_config("code", "phi2", epochs=300)
    assert code.rate(250 * first) == pytest.approx(rate)
    assert code.rate(250 * last + 249) == pytest.approx(rate)


def test_what_is_given_replaces_the_presets() -> None:
    config = choose_config("code", "phi1", epochs=3, learning_rate=None, bias=False, seed=7)
    assert (config.phi, config.epochs, config.bias, config.seed) == ("phi1", 3, False, 7)
    unchanged = {field.name for field in fields(TrainConfig)} - {"phi", "epochs", "bias", "seed"}
    assert all(getattr(config, name) == getattr(PRESETS["code"], name) for name in unchanged)
    spec = choose_config("paper", "phi1", query_norm=True, bias=False, input_norm=False).spec(12)
    assert (spec.kind, spec.dim, spec.input_norm, spec.bias, spec.query_norm) == ("phi1", 12, False, False, True)


def test_a_rate_may_fall_to_zero() -> None:
    config = choose_config("paper", "phi1", epochs=2, batches=5, learning_rate=0.3, cosine=True)
    rates = [config.rate(step) for step in range(10)]
    assert rates[0] == pytest.approx(0.3)
    assert rates == sorted(rates, reverse=True)
    assert rates[5] == pytest.approx(0.15)
    assert 0 < rates[9] < 0.01


def test_several_examples_are_remembered_and_the_papers_one_is_not() -> None:
    assert choose_config("paper", "phi1", examples=(1, 5)).to_json()["examples"] == (1, 5)
    assert "examples" not in choose_config("paper", "phi1").to_json()


def test_phi2star_is_trained_on_means_only() -> None:
    assert {choose_config(preset, "phi2star").p_mean for preset in PRESETS} == {1.0}
    assert choose_config("paper", "phi2star", p_mean=1.0).p_mean == 1.0
    with pytest.raises(InvalidInputError, match=r"phi2star is trained on means only, got p_mean 0\.9; choose phi2"):
        choose_config("paper", "phi2star", p_mean=0.9)


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        ("mine", {}, "preset must be one of paper, code, got 'mine'"),
        ("paper", {"epoch": 3}, "a training has no setting 'epoch'; it has batches, bias"),
        ("paper", {"epochs": 0}, "epochs must be positive, got 0"),
        ("paper", {"batches": -1}, "batches must be positive"),
        ("paper", {"learning_rate": float("nan")}, "learning rate must be positive, got nan"),
        ("paper", {"examples": (0, 2)}, r"examples must be the least and the most"),
        ("paper", {"examples": (3, 2)}, r"examples must be the least and the most"),
        ("paper", {"p_mean": 1.5}, "p_mean must be a probability between 0 and 1, got 1.5"),
        ("paper", {"p_mean": float("nan")}, "p_mean must be a probability"),
    ],
)
def test_bad_settings(preset: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        choose_config(preset, "phi2", **changes)
