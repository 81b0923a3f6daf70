"""The baselines of the paper and others, each with its citation.

Examples:
    >>> import baselines
    >>> methods = baselines.make("nn", "class-mean", "simple-shot")  # these need no training
    >>> results = predictor.evaluate(methods, store, split, shots=1, draws=2)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily

if TYPE_CHECKING:
    from baselines.inference.adaptation import time_adaptation
    from baselines.inference.comparison import time_inference
    from baselines.inference.latency import InferenceResults
    from baselines.meta_training import read_learners
    from baselines.method_names import CALIBRATED, EPISODE_NAMES, NAMES, require_names
    from baselines.registry import make, make_for_episodes
    from baselines.trainings import OPTIONS, train

# Loaded on first use: most wait for torch.
__getattr__, __dir__ = lazily(__name__)
