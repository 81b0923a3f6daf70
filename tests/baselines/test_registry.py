"""Baselines by name: what each gives, and what they say when a training is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import actstore
from actstore.errors import InvalidInputError
from baselines.attention_weights import AttentionConfig, AttentionTrainee
from baselines.large_sample import train_on_rows
from baselines.linear import LinearConfig, LinearTrainee
from baselines.method_names import NAMES
from baselines.registry import BASELINES, WHERE_TRAINED, make
from baselines.triplet import TripletConfig, TripletTrainee
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.head import Head

SPLIT = CategorySplit(("c4", "c0", "c2", "c5"), ("c1", "c3"))
LINEAR = LinearConfig(epochs=1, batch_size=16)


@pytest.fixture
def runs(train: actstore.Split, tmp_path: Path) -> Path:
    runs = tmp_path / "runs"
    train_on_rows(TripletTrainee, "triplet", train, SPLIT.base, runs / "triplet", TripletConfig(steps=2))
    train_on_rows(AttentionTrainee, "attention", train, SPLIT.base, runs / "attention", AttentionConfig(steps=2))
    train_on_rows(LinearTrainee, "head", train, SPLIT.base, runs / "head", LINEAR)
    train_on_rows(LinearTrainee, "oracle", train, (*SPLIT.base, *SPLIT.novel), runs / "oracle", LINEAR)
    return runs


def test_all_methods_score_all_categories(
    train: actstore.Split, runs: Path, queries: torch.Tensor, draw: Callable[..., torch.Tensor]
) -> None:
    methods = make("all", train=train, split=SPLIT, runs=runs)
    base = BaseCategories.of_split(train, SPLIT.base)
    for method in methods:
        method.prepare(base)
        scores = method.scores(queries, draw(2))
        assert scores.shape == (11, 6), method.name
        assert torch.isfinite(scores).all()
        assert method.store is None
    assert [(method.name, method.share, method.finetuned) for method in methods] == [
        ("NN+Cosine", "100%", False), ("NN+Cosine", "10%", False), ("NN+Cosine", "1%", False),
        *(("Triplet (activations)", share, False) for share in ("100%", "10%", "1%")),
        ("Fine-Tuned fc (activations)", "100%", True), ("Learning like a Child", "100%", True),
        ("Imprinting", "100%", False), ("Imprinting (base rows too)", "100%", False),
        ("Nearest class mean", "100%", False), ("SimpleShot (centred class mean)", "100%", False),
        ("Ridge regression", "100%", False), ("Tip-Adapter (training-free)", "100%", False),
        ("Attention over base weights", "100%", False),
        ("Oracle NN", "100%", False), ("Oracle linear", "100%", True),
    ]  # fmt: skip


def test_a_given_head_stands_in_for_the_trained_one(
    train: actstore.Split, tmp_path: Path, queries: torch.Tensor, draw: Callable[..., torch.Tensor]
) -> None:
    head = Head(torch.eye(4, 16), torch.zeros(4), SPLIT.base)
    (child,) = make("child", train=train, split=SPLIT, head=head, runs=tmp_path / "none")
    child.prepare(BaseCategories.of_split(train, SPLIT.base))
    assert torch.equal(child.scores(queries, draw(1))[:, :4], queries[:, :4])


@pytest.mark.parametrize("name", ["triplet", "child", "oracle", *WHERE_TRAINED])
def test_a_missing_training_names_its_command(train: actstore.Split, tmp_path: Path, name: str) -> None:
    command = {"child": "head"}.get(name, name)
    with pytest.raises(InvalidInputError, match=f"needs training, and .* is not there: run `ppa baseline {command} "):
        make(name, train=train, split=SPLIT, runs=tmp_path / "none")


def test_a_training_of_something_else_is_refused(train: actstore.Split, runs: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="was trained on other classes"):
        make("triplet", train=train, split=CategorySplit(("c0", "c1"), ("c2",)), runs=runs)
    other = actstore.from_arrays(
        tmp_path / "other.zarr", {"train": (train.to_torch().numpy() + 1, train.labels)}, classes=train.classes
    )
    with pytest.raises(InvalidInputError, match="was trained on other rows than those of"):
        make("oracle", train=other["train"], split=SPLIT, runs=runs)
    (runs / "triplet").rename(runs / "moved")
    (runs / "head").rename(runs / "triplet")
    with pytest.raises(InvalidInputError, match="must hold triplet, got head"):
        make("triplet", train=train, split=SPLIT, runs=runs)


def test_an_unknown_name_lists_the_known(train: actstore.Split) -> None:
    with pytest.raises(InvalidInputError, match=r"no method 'knn'; did you mean nn\? known: all, nn, triplet"):
        make("nn", "knn")
    assert set(WHERE_TRAINED) < set(BASELINES)
    assert tuple(BASELINES) == NAMES


def test_a_class_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_method_of_a_test.py").write_text(
        "import predictor\n\n\nclass Mine(predictor.Method):\n    name = 'mine'\n\n"
        "    def novel_scores(self, queries, support):\n        return queries @ support.mean(1).T\n"
    )
    (mine,) = make("own_method_of_a_test:Mine")
    assert mine.name == "mine"
    for wrong in ("own_method_of_a_test:Yours", "no_such_module:Mine", "json:JSONDecoder"):
        with pytest.raises(InvalidInputError, match=wrong):
            make(wrong)


def test_what_was_trained_needs_its_rows_and_categories(train: actstore.Split) -> None:
    with pytest.raises(InvalidInputError, match="the argument train"):
        make("triplet")
    with pytest.raises(InvalidInputError, match="the argument split"):
        make("oracle", train=train)
