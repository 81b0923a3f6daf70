"""Trainings that are joined must be of one network and the same classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from actstore.backbones.construction import build_network, is_ours
from actstore.backbones.weights import save_weights
from actstore.errors import InvalidInputError
from predictor.training.backbones.pretraining import join_members


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
