"""Trainings that are planned for so many hours, and trainings that are joined into one network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from actstore.backbones.construction import build_network, is_ours
from actstore.backbones.weights import save_weights
from actstore.errors import DamagedError, InvalidInputError
from actstore.images.opening import open_images
from predictor.protocol.category_split import alphabetical_split
from predictor.training.backbones import pretraining
from predictor.training.backbones.config import TrainingConfig, choose_candidates, choose_preset
from predictor.training.backbones.images import TrainingImages, select_images
from predictor.training.backbones.pretraining import join_members, measure_speed, plan_for_hours, plan_training
from predictor.training.processes import Processes
from tests.predictor.training.backbones.tiny import TINY, TINY_GLYPHS


def by_area(config: TrainingConfig, size: int) -> float:
    """A machine whose speed falls with the area of an image, twice as fast in 16 bits; 100 images/s at 64 pixels."""
    return 100 * (64 / size) ** 2 * (2 if config.precision == "bfloat16" else 1)


def test_larger_images_for_longer_trainings() -> None:
    candidates = choose_candidates("few-shot")
    plans = {hours: plan_training(candidates, hours, 40_000, by_area)[0] for hours in (0.1, 1, 8, 24)}
    assert [plan.precision for plan in plans.values()] == ["bfloat16"] * 4
    sizes = [plan.image_size for plan in plans.values()]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (32, 64)
    day = plans[24]
    epoch_seconds = 0.5 * 40_000 / 200 + 0.5 * 40_000 / 800  # half of them of images half as large
    assert day.epochs == int(24 * 3600 * (1 - pretraining.OTHER_WORK) / epoch_seconds)
    assert plans[0.1].epochs >= 1
    assert plan_training(candidates, 1e-6, 40_000, by_area)[0].epochs == 1


def test_speeds_are_measured_once_and_told() -> None:
    measured: list[tuple[str, int]] = []

    def measure(config: TrainingConfig, size: int) -> float:
        measured.append((config.precision, size))
        return by_area(config, size)

    config, speeds = plan_training(choose_candidates("few-shot"), 24, 40_000, measure)
    assert measured == [("float32", 64), ("bfloat16", 64), ("bfloat16", 32)]
    assert speeds[f"{config.backbone}, 64 pixels, bfloat16"] == 200
    smaller = choose_candidates("few-shot", start_size=16)
    slow, slow_speeds = plan_training(smaller, 24, 40_000, by_area)
    assert slow.epochs > 1.1 * config.epochs  # half of its epochs cost a sixteenth, not a quarter
    assert f"{slow.backbone}, 16 pixels, bfloat16" in slow_speeds


def test_what_is_given_is_not_planned() -> None:
    for given in ({"precision": "float32"}, {"image_size": 40}):
        ((name, value),) = given.items()
        assert {getattr(equal, name) for equals in choose_candidates("few-shot", **given) for equal in equals} == {
            value
        }
    assert [equals[0].image_size for equals in choose_candidates("few-shot", start_size=40)] == [64, 64, 48]
    assert [equals[0].start_size for equals in choose_candidates("few-shot")] == [32, 32, 32, 0]
    assert {equals[0].start_size for equals in choose_candidates("few-shot", augment="shift")} == {0}
    assert {equals[0].start_size for equals in choose_candidates("few-shot", image_size=24)} == {0}
    assert choose_candidates("quick", flip=True) == [[choose_preset("quick", flip=True)]]


def test_short_trainings_have_a_smaller_network_and_no_blends() -> None:
    plans = {hours: plan_training(choose_candidates("few-shot"), hours, 40_000, by_area)[0] for hours in (1, 8)}
    assert [(plan.backbone, plan.mixup) for plan in plans.values()] == [("resnet10-narrow", 0.0), ("resnet8", 0.3)]
    assert {plan.mixup for equals in choose_candidates("few-shot", mixup=0.1) for plan in equals} == {0.1}


def glyphs() -> TrainingImages:
    sets = open_images(TINY_GLYPHS)
    return select_images(sets, alphabetical_split(sets["train"].classes), 0)


def test_a_plan_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speed = 1000.0
    monkeypatch.setattr(pretraining, "measure_speed", lambda config, size, **_: speed)
    first = plan_for_hours([[TINY]], 1.0, glyphs(), tmp_path, "cpu")
    assert first.epochs == int(3600 * (1 - pretraining.OTHER_WORK) / (72 / 1000))
    speed = 10.0
    assert plan_for_hours([[TINY]], 1.0, glyphs(), tmp_path, "cpu") == first
    assert json.loads((tmp_path / "plan.json").read_text())["images per second"] == {"small, 32 pixels, float32": 1000}
    with pytest.raises(InvalidInputError, match=r"plan\.json belongs to another training: plan hours was 1.0, is 2"):
        plan_for_hours([[TINY]], 2, glyphs(), tmp_path, "cpu")
    assert plan_for_hours([[TINY]], 2, glyphs(), tmp_path, "cpu", restart=True).epochs < first.epochs
    (tmp_path / "plan.json").write_text('{"asked": {}}')
    with pytest.raises(DamagedError, match="is no plan of a training"):
        plan_for_hours([[TINY]], 2, glyphs(), tmp_path, "cpu")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_speed_is_measured(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    monkeypatch.setattr(pretraining, "SECONDS_PER_SPEED", 0.01)
    config = TrainingConfig(**{**TINY.to_json(), "precision": precision})
    assert measure_speed(config, 24, 9, torch.device("cpu"), Processes()) > 0


def test_only_trainings_of_the_same_classes_are_joined(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.safetensors" for number in (1, 2)]
    for path, classes in zip(paths, ("ab", "ac"), strict=True):
        save_weights(path, build_network("small", 2), "small", list(classes))
    with pytest.raises(InvalidInputError, match=r"2\.safetensors must be of the same network, classes and image size"):
        join_members(paths, tmp_path / "joined.safetensors")
    assert not (tmp_path / "joined.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "known"),
    [("small", True), ("small+small+small", True), ("+".join(["small"] * 9), False),
     ("small+resnet8", False), ("small+", False), ("", False),
     (None, False)],
)  # fmt: skip
def test_names_of_networks_side_by_side(name: str | None, known: bool) -> None:
    assert is_ours(name) == known
