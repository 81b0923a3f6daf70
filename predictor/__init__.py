"""The paper: phi, and everything that turns it into a classifier.

import predictor
classifier = predictor.Classifier.from_backbone()
classifier.adapt_folder("new-animals/")
classifier.predict_images(["photo.jpg"])
classifier.save("classifier.safetensors")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from predictor.classifier.checking import Check, check_folder
    from predictor.classifier.classifier import Classifier
    from predictor.classifier.classifier_file import load_classifier, save_classifier
    from predictor.classifier.export import names_file
    from predictor.classifier.learning import Adaptation
    from predictor.classifier.predictions import Predictions
    from predictor.training.trained_phi import load_phi

# Loaded on first use: a baseline that needs the protocol alone must not wait for a classifier.
_HOMES = {
    "Adaptation": "predictor.classifier.learning",
    "Check": "predictor.classifier.checking",
    "Classifier": "predictor.classifier.classifier",
    "Predictions": "predictor.classifier.predictions",
    "check_folder": "predictor.classifier.checking",
    "load_classifier": "predictor.classifier.classifier_file",
    "names_file": "predictor.classifier.export",
    "load_phi": "predictor.training.trained_phi",
    "save_classifier": "predictor.classifier.classifier_file",
}

__all__ = [
    "Adaptation",
    "Check",
    "Classifier",
    "Predictions",
    "check_folder",
    "load_classifier",
    "load_phi",
    "names_file",
    "save_classifier",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'predictor' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
