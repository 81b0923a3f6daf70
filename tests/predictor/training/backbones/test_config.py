"""Settings of a backbone's training: presets, checks and learning rates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from actstore.errors import InvalidInputError
from predictor.training.backbones.config import PRESETS, choose_preset


def test_the_papers_presets_hold_the_papers_values() -> None:
    for name, backbone in (("paper-simple", "simple"), ("paper-wrn", "wrn28-10")):
        config = PRESETS[name]
        assert config.backbone == backbone
        assert (config.learning_rate, config.schedule, config.weight_decay) == (0.1, "constant", 1e-4)
        assert (config.batch_size, config.epochs, config.image_size, config.flip) == (64, 300, 80, True)
        assert config.momentum == 0.9
        assert config.jitter
        assert config.lighting
    resnet = PRESETS["paper-resnet50"]
    assert (resnet.batch_size, resnet.epochs, resnet.decay_epochs, resnet.weight_decay) == (256, 90, 30, 1e-4)


def test_every_value_of_a_preset_can_be_overridden() -> None:
    config = choose_preset("quick", learning_rate=0.5, flip=True, epochs=None)
    assert (config.learning_rate, config.flip, config.epochs) == (0.5, True, PRESETS["quick"].epochs)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"epochs": 0}, "epochs must be 1 or more, got 0"),
        ({"learning_rate": float("nan")}, "learning rate must be 0 or more, got nan"),
        ({"momentum": 1.0}, "momentum must be from 0 to below 1"),
        ({"schedule": "linear"}, "schedule must be one of constant, step, cosine, got linear"),
        ({"shift": 40}, "shift must be less than the image size 32"),
        ({"jitter": 0.4}, "colours of images kept in memory cannot be changed"),
        ({"precision": "float8"}, "precision must be one of float32, bfloat16, got float8"),
        ({"start_size": 24}, "augment must be crop where a start size is given, got shift"),
        ({"start_size": 40, "augment": "crop"}, "start size must be 0, or 8 to the image size 32, got 40"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidInputError, match=expected):
        choose_preset("quick", **changes)


def test_unknown_preset() -> None:
    with pytest.raises(InvalidInputError, match="no preset 'fast'; known: quick"):
        choose_preset("fast")


def test_learning_rates() -> None:
    step = PRESETS["paper-resnet50"]
    assert [step.rate(epoch * 7, 7) for epoch in (0, 29, 30, 60, 89)] == pytest.approx([0.1, 0.1, 0.01, 0.001, 0.001])
    assert {PRESETS["paper-simple"].rate(number, 7) for number in range(0, 2100, 99)} == {0.1}
    quick = choose_preset("quick", epochs=10, warmup_epochs=2)
    rates = [quick.rate(number, 10) for number in range(100)]
    assert np.argmax(rates) == 20
    assert rates[20] == quick.learning_rate
    assert np.all(np.diff(rates[:21]) > 0)
    assert np.all(np.diff(rates[20:]) < 0)
    assert 0 < rates[0] < 0.1 * quick.learning_rate
    assert 0 < rates[-1] < 0.01 * quick.learning_rate


def test_the_first_epochs_may_see_smaller_images() -> None:
    config = choose_preset("quick", augment="crop", epochs=5, start_size=16, start_share=0.5)
    assert [config.size_of(epoch) for epoch in range(5)] == [16, 16, 16, 32, 32]
    assert {PRESETS["quick"].size_of(epoch) for epoch in range(6)} == {32}


def test_settings_that_are_not_used_are_not_part_of_a_training() -> None:
    """Trainings that were begun before there were such settings go on."""
    assert not {"start_size", "start_share", "precision"} & PRESETS["quick"].to_json().keys()
    config = choose_preset("quick", augment="crop", start_size=16, precision="bfloat16")
    assert (config.to_json()["start_size"], config.to_json()["precision"]) == (16, "bfloat16")
