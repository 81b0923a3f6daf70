"""Training: one loop (loop.py) for phi, baselines, meta-learners and backbones, and the trainees phi and backbones.

A trainee says what a step is; log, checkpoints, exact resumption, several processes, divergence and locks are the
loop's. Imports `phi`, `figures`, `protocol` and `actstore`; baselines bring trainees of their own.
"""

from actstore.errors import DivergedError
from predictor.training.loop import Report, RunOptions, train
from predictor.training.run_files import Trained, read_trained
from predictor.training.trainee import Figures, Tensors, Trainee

__all__ = [
    "DivergedError", "Figures", "Report", "RunOptions", "Tensors", "Trained", "Trainee", "read_trained", "train",
]  # fmt: skip
