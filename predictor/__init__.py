"""The paper: phi, every measurement of it, and classifiers that learn a category from a few examples.

import predictor
split = predictor.split_categories(store)
phi = predictor.train_phi(store["train"], split)
predictor.evaluate([phi], store, split)
classifier = predictor.Classifier.from_backbone()
classifier.adapt_folder("new-animals/")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from predictor.calibrating import calibrate
    from predictor.classifier.calibrated import apply_calibrations, open_for_calibration, set_constant
    from predictor.classifier.checking import Check
    from predictor.classifier.classifier import Classifier
    from predictor.classifier.classifier_file import load_classifier, save_classifier
    from predictor.classifier.export import names_file
    from predictor.classifier.learning import Adaptation
    from predictor.classifier.predictions import Predictions
    from predictor.measuring import evaluate, run_episodes, run_sessions
    from predictor.phi.recogniser import OwnClassifier
    from predictor.protocol.base_categories import BaseCategories
    from predictor.protocol.calibration import Calibration
    from predictor.protocol.category_split import CategorySplit, read_split, split_categories
    from predictor.protocol.head import Head, read_head, read_own_head
    from predictor.protocol.method import JointMethod, Method
    from predictor.report.results import Results
    from predictor.training.trained_phi import TrainedPhi, load_phi, train_phi

# Loaded on first use: a name waits for torch only where it needs it.
_HOMES = {
    "Adaptation": "predictor.classifier.learning",
    "BaseCategories": "predictor.protocol.base_categories",
    "Calibration": "predictor.protocol.calibration",
    "CategorySplit": "predictor.protocol.category_split",
    "Check": "predictor.classifier.checking",
    "Classifier": "predictor.classifier.classifier",
    "Head": "predictor.protocol.head",
    "JointMethod": "predictor.protocol.method",
    "Method": "predictor.protocol.method",
    "OwnClassifier": "predictor.phi.recogniser",
    "Predictions": "predictor.classifier.predictions",
    "Results": "predictor.report.results",
    "TrainedPhi": "predictor.training.trained_phi",
    "apply_calibrations": "predictor.classifier.calibrated",
    "calibrate": "predictor.calibrating",
    "evaluate": "predictor.measuring",
    "load_classifier": "predictor.classifier.classifier_file",
    "load_phi": "predictor.training.trained_phi",
    "names_file": "predictor.classifier.export",
    "open_for_calibration": "predictor.classifier.calibrated",
    "read_head": "predictor.protocol.head",
    "read_own_head": "predictor.protocol.head",
    "read_split": "predictor.protocol.category_split",
    "run_episodes": "predictor.measuring",
    "run_sessions": "predictor.measuring",
    "save_classifier": "predictor.classifier.classifier_file",
    "set_constant": "predictor.classifier.calibrated",
    "split_categories": "predictor.protocol.category_split",
    "train_phi": "predictor.training.trained_phi",
}

__all__ = [
    "Adaptation",
    "BaseCategories",
    "Calibration",
    "CategorySplit",
    "Check",
    "Classifier",
    "Head",
    "JointMethod",
    "Method",
    "OwnClassifier",
    "Predictions",
    "Results",
    "TrainedPhi",
    "apply_calibrations",
    "calibrate",
    "evaluate",
    "load_classifier",
    "load_phi",
    "names_file",
    "open_for_calibration",
    "read_head",
    "read_own_head",
    "read_split",
    "run_episodes",
    "run_sessions",
    "save_classifier",
    "set_constant",
    "split_categories",
    "train_phi",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'predictor' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
