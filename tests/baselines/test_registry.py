"""Baselines by name: what each gives, and what they say when a training is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import actstore
from actstore.errors import InvalidInputError
from baselines.linear import LinearConfig, train_linear
from baselines.registry import BASELINES, FROM_IMAGES, Setting, make_baselines
from baselines.triplet import TripletConfig, train_triplet
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.head import Head
from predictor.protocol.method import Support

SPLIT = CategorySplit(("c4", "c0", "c2", "c5"), ("c1", "c3"))
LINEAR = LinearConfig(epochs=1, batch_size=16)


@pytest.fixture
def runs(train: actstore.Split, tmp_path: Path) -> Path:
    runs = tmp_path / "runs"
    train_triplet(train, SPLIT.base, runs / "triplet", TripletConfig(steps=2))
    train_linear(train, SPLIT.base, runs / "head", "head", LINEAR)
    train_linear(train, (*SPLIT.base, *SPLIT.novel), runs / "oracle", "oracle", LINEAR)
    return runs


def test_all_methods_score_all_categories(
    train: actstore.Split, runs: Path, queries: torch.Tensor, draw: Callable[..., Support]
) -> None:
    entries = make_baselines(["all"], Setting(train, SPLIT, runs=runs))
    for entry in entries:
        scores = entry.method.scores(queries, draw(2))
        assert scores.shape == (11, 6), entry.method.name
        assert torch.isfinite(scores).all()
        assert entry.store is None
    assert [(entry.method.name, entry.method.share, entry.method.finetuned) for entry in entries] == [
        ("NN+Cosine", "100%", False), ("NN+Cosine", "10%", False), ("NN+Cosine", "1%", False),
        *(("Triplet (activations)", share, False) for share in ("100%", "10%", "1%")),
        ("Fine-Tuned fc (activations)", "100%", True), ("Learning like a Child", "100%", True),
        ("Imprinting", "100%", False), ("Imprinting (base rows too)", "100%", False),
        ("Nearest class mean", "100%", False), ("SimpleShot (centred class mean)", "100%", False),
        ("Oracle NN", "100%", False), ("Oracle linear", "100%", True),
    ]  # fmt: skip


def test_a_given_head_stands_in_for_the_trained_one(
    train: actstore.Split, tmp_path: Path, queries: torch.Tensor, draw: Callable[..., Support]
) -> None:
    head = Head(torch.eye(4, 16), torch.zeros(4), SPLIT.base)
    (child,) = make_baselines(["child"], Setting(train, SPLIT, head, tmp_path / "none"))
    assert torch.equal(child.method.scores(queries, draw(1))[:, :4], queries[:, :4])


@pytest.mark.parametrize("name", ["triplet", "child", "oracle", *FROM_IMAGES])
def test_a_missing_training_names_its_command(train: actstore.Split, tmp_path: Path, name: str) -> None:
    command = {"child": "head"}.get(name, name)
    with pytest.raises(InvalidInputError, match=f"needs training, and .* is not there: run `ppa baseline {command} "):
        make_baselines([name], Setting(train, SPLIT, runs=tmp_path / "none"))


def test_a_training_of_something_else_is_refused(train: actstore.Split, runs: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="was trained on other classes"):
        make_baselines(["triplet"], Setting(train, CategorySplit(("c0", "c1"), ("c2",)), runs=runs))
    other = actstore.from_arrays(
        tmp_path / "other.zarr", {"train": (train.to_torch().numpy() + 1, train.labels)}, classes=train.classes
    )
    with pytest.raises(InvalidInputError, match="was trained on other rows than those of"):
        make_baselines(["oracle"], Setting(other["train"], SPLIT, runs=runs))
    (runs / "triplet").rename(runs / "moved")
    (runs / "head").rename(runs / "triplet")
    with pytest.raises(InvalidInputError, match="must hold triplet, got head"):
        make_baselines(["triplet"], Setting(train, SPLIT, runs=runs))


def test_an_unknown_name_lists_the_known(train: actstore.Split) -> None:
    with pytest.raises(InvalidInputError, match=r"no method 'knn'; did you mean nn\? known: all, nn, triplet"):
        make_baselines(["nn", "knn"], Setting(train, SPLIT))
    assert set(FROM_IMAGES) < set(BASELINES)
