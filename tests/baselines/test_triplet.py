"""The triplet loss against a plain loop, and the embedding it trains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import actstore
from actstore.errors import InvalidInputError
from baselines.large_sample import train_on_rows
from baselines.nearest_neighbour import NearestNeighbour
from baselines.triplet import Triplet, TripletConfig, TripletTrainee, plan_triplets, trained_embedding, triplet_loss
from predictor.protocol.base_categories import BaseCategories
from predictor.training import RunOptions

pytestmark = pytest.mark.numeric

BASE = ("c4", "c0", "c2", "c5")
CONFIG = TripletConfig(steps=30, classes_per_batch=4, rows_per_class=4)


class Killed(Exception):
    pass


def plain_loss(embeddings: np.ndarray, targets: np.ndarray, margin: float) -> tuple[float, float]:
    units = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    distance = 1 - units @ units.T
    losses, pairs = [], 0
    for anchor in range(len(targets)):
        for positive in range(len(targets)):
            if anchor == positive or targets[anchor] != targets[positive]:
                continue
            pairs += 1
            farther = [
                distance[anchor, other]
                for other in range(len(targets))
                if targets[other] != targets[anchor] and distance[anchor, other] > distance[anchor, positive]
            ]
            if farther and distance[anchor, positive] - min(farther) + margin > 0:
                losses.append(distance[anchor, positive] - min(farther) + margin)
    return (float(np.mean(losses)) if losses else 0.0), len(losses) / max(1, pairs)


@settings(max_examples=60, deadline=None)
@given(
    targets=st.lists(st.integers(0, 3), min_size=2, max_size=12),
    margin=st.floats(0.01, 1.5),
    seed=st.integers(0, 1000),
)
def test_the_loss_equals_a_loop_over_triplets(targets: list[int], margin: float, seed: int) -> None:
    embeddings = np.random.default_rng(seed).standard_normal((len(targets), 5))
    loss, active = triplet_loss(torch.from_numpy(embeddings), torch.tensor(targets), margin)
    assert (float(loss), float(active)) == pytest.approx(plain_loss(embeddings, np.array(targets), margin))


def test_the_loss_pulls_towards_the_positive() -> None:
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.4], [1.0, 0.6]], requires_grad=True)
    loss, active = triplet_loss(embeddings, torch.tensor([0, 0, 1]), 0.5)
    loss.backward()
    assert active == 0.5  # seen from the second row the negative is nearer than the positive: not semi-hard
    assert embeddings.grad is not None
    assert embeddings.grad[1, 1] > 0  # downhill is towards the first row
    assert embeddings.grad[2, 1] < 0  # and away from it for the negative


def test_batches_are_pure_and_hold_rows_of_their_classes(train: actstore.Split) -> None:
    labels = np.array([4, 0, 2, 5])
    rows, places = plan_triplets(train.class_index, labels, 3, 5, seed=1, step=7)
    assert (train.labels[rows] == labels[places]).all()
    assert sorted(np.bincount(places, minlength=4)) == [0, 5, 5, 5]
    again, _ = plan_triplets(train.class_index, labels, 3, 5, seed=1, step=7)
    other, _ = plan_triplets(train.class_index, labels, 3, 5, seed=1, step=8)
    assert (rows == again).all()
    assert (rows != other).any()
    with pytest.raises(InvalidInputError, match="triplets need at least two classes, got 1"):
        plan_triplets(train.class_index, labels[:1], 3, 5, seed=1, step=7)


def test_training_lowers_the_loss_of_an_embedding_that_starts_as_the_identity(
    train: actstore.Split, tmp_path: Path, queries: torch.Tensor
) -> None:
    trained = train_on_rows(TripletTrainee, "triplet", train, BASE, tmp_path / "run", CONFIG)
    embedding = trained_embedding(trained)
    rows, places = plan_triplets(train.class_index, np.array([4, 0, 2, 5]), 4, 12, seed=9, step=0)
    values, targets = train.to_torch(rows), torch.from_numpy(places)
    before, after = (triplet_loss(part, targets, CONFIG.margin)[0] for part in (values, embedding(values)))
    assert after < before
    plain, embedded = NearestNeighbour(), Triplet(embed=embedding)
    for method in (plain, embedded):
        method.prepare(BaseCategories.of_split(train, BASE))
    assert not torch.allclose(plain.base_scores(queries), embedded.base_scores(queries), atol=1e-4)
    torch.testing.assert_close(embedding(torch.zeros(2, 16)), torch.zeros(2, 16))
    trained.tensors["change"].zero_()
    assert torch.equal(trained_embedding(trained)(queries), queries)


@pytest.mark.parametrize("step", [1, 17])
def test_a_killed_training_ends_as_one_that_was_not(train: actstore.Split, tmp_path: Path, step: int) -> None:
    def kill(done: int, total: int, figures: object) -> None:
        if done == step + 1:
            raise Killed

    whole = train_on_rows(TripletTrainee, "triplet", train, BASE, tmp_path / "whole", CONFIG)
    every = RunOptions(checkpoint_seconds=0)
    with pytest.raises(Killed):
        train_on_rows(TripletTrainee, "triplet", train, BASE, tmp_path / "run", CONFIG, options=every, report=kill)
    resumed = train_on_rows(TripletTrainee, "triplet", train, BASE, tmp_path / "run", CONFIG, options=every)
    assert torch.equal(whole.tensors["change"], resumed.tensors["change"])
    assert whole.figures == resumed.figures
    with pytest.raises(InvalidInputError, match=r"config margin was 0\.2, is 0\.3"):
        other = TripletConfig(steps=30, classes_per_batch=4, margin=0.3)
        train_on_rows(TripletTrainee, "triplet", train, BASE, tmp_path / "run", other)
