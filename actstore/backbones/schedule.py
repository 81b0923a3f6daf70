"""The learning rate of every step: a pure function of the step."""

from __future__ import annotations

import math

from actstore.backbones.presets import TrainingConfig


def learning_rate(config: TrainingConfig, step: int, steps_per_epoch: int) -> float:
    """constant; step: a tenth after every `decay_epochs`; cosine: down to 0 at the end. All after a linear warm-up.

    step counts from 0 over the whole training.
    """
    warmup = round(config.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return config.learning_rate * (step + 1) / (warmup + 1)
    if config.schedule == "step":
        return float(config.learning_rate * 0.1 ** (step // (config.decay_epochs * steps_per_epoch)))
    if config.schedule == "cosine":
        rest = max(1, config.epochs * steps_per_epoch - warmup)
        return config.learning_rate * (1 + math.cos(math.pi * (step - warmup) / rest)) / 2
    return config.learning_rate
