"""The paper: phi, and everything that turns it into a classifier.

from predictor import load_classifier
classifier = load_classifier("classifier.safetensors")
classifier.adapt("zebra finch", activations)        # (n, dim)
classifier.predict(queries, top=5)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from predictor.classifier.classifier import Classifier
    from predictor.classifier.classifier_file import load_classifier, save_classifier

# Loaded on first use: a baseline that needs the protocol alone must not wait for a classifier.
_HOMES = {
    "Classifier": "predictor.classifier.classifier",
    "load_classifier": "predictor.classifier.classifier_file",
    "save_classifier": "predictor.classifier.classifier_file",
}

__all__ = ["Classifier", "load_classifier", "save_classifier"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'predictor' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
