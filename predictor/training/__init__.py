"""Training: one loop (loop.py) for phi, baselines, meta-learners and backbones, and the trainees phi and backbones.

A trainee says what a step is; log, checkpoints, exact resumption, several processes, divergence and locks are the
loop's. Imports `phi`, `figures`, `protocol` and `actstore`; baselines bring trainees of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily

if TYPE_CHECKING:
    from actstore.errors import DivergedError
    from predictor.training.backbones.pretraining import BACKBONE_FILES
    from predictor.training.loop import RUN_FILES, Report, RunOptions, Trained, read_model, read_trained, train
    from predictor.training.processes import failing_once
    from predictor.training.trained_phi import noted_store
    from predictor.training.trainee import Figures, Tensors, Trainee, cosine

__getattr__, __dir__ = lazily(__name__)
