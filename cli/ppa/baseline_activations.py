"""Trainings of `ppa baseline` that read a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.ppa.baseline_request import Request, Trainer

if TYPE_CHECKING:
    from predictor.training import Trained


def _triplet(request: Request) -> Trained:
    from baselines.triplet import TripletConfig, train_triplet

    rows, categories = request.open_rows()
    config = TripletConfig(seed=request.given["seed"], **request.settings("steps", "learning_rate"))
    return train_triplet(
        rows, categories.base, request.folder, config, request.device, request.run_options, request.bars.report
    )


def _linear(request: Request) -> Trained:
    """head: of the base categories; oracle: of all."""
    from baselines.linear import LinearConfig, train_linear

    rows, categories = request.open_rows()
    names = categories.base if request.name == "head" else (*categories.base, *categories.novel)
    changed = request.settings("epochs", "batch_size", "learning_rate")
    config = LinearConfig(seed=request.given["seed"], **changed)
    return train_linear(
        rows, names, request.folder, request.name, config, request.device, request.run_options, request.bars.report
    )


_LINEAR = Trainer(_linear, frozenset({"store", "train_split", "epochs", "batch_size", "learning_rate"}))
ACTIVATION_TRAINERS = {
    "triplet": Trainer(_triplet, frozenset({"store", "train_split", "steps", "learning_rate"})),
    "head": _LINEAR,
    "oracle": _LINEAR,
}
