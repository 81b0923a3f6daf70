"""How a learning rate falls: a pure function of the step."""

from __future__ import annotations

import math


def cosine(step: int, steps: int) -> float:
    """The share of a learning rate that is left in a step, counted from 0: from 1 down to 0 after the last."""
    return (1 + math.cos(math.pi * step / steps)) / 2
