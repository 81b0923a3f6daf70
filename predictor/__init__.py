"""The paper: phi, every measurement of it, and classifiers that learn a category from a few examples.

Examples:
    >>> import predictor
    >>> split = predictor.split_categories(store, novel=0.25)
    >>> phi = predictor.train_phi(store["train"], split, epochs=1, batches=2)
    >>> results = predictor.evaluate(phi, store, split, shots=1, draws=2)
    >>> classifier = predictor.Classifier.from_phi(phi)
    >>> classifier.adapt("dog", store["train"].of_class("dog"))
    >>> classifier.categories
    ('ant', 'bee', 'cat', 'dog')
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily

if TYPE_CHECKING:
    from predictor.calibrating import calibrate
    from predictor.classifier.checking import Check, check_folder
    from predictor.classifier.classifier import Classifier
    from predictor.classifier.classifier_file import (
        apply_calibrations,
        load_classifier,
        open_for_calibration,
        save_classifier,
        set_constant,
    )
    from predictor.classifier.export import Agreement, names_file
    from predictor.classifier.predictions import Adaptation, Prediction, Predictions
    from predictor.classifier.starting import BaseLoss
    from predictor.measuring import evaluate, run_episodes, run_sessions
    from predictor.phi.rule import OwnClassifier
    from predictor.protocol.base_categories import BaseCategories
    from predictor.protocol.calibration import Calibration, Calibrations
    from predictor.protocol.category_split import CategorySplit, read_split, split_categories
    from predictor.protocol.head import Head, read_head, read_own_head
    from predictor.protocol.method import JointMethod, Method
    from predictor.protocol.results import Results
    from predictor.report.all_way_table import AllWayResults
    from predictor.report.session_table import EpisodeResults, SessionResults
    from predictor.training.backbones.pretraining import pretrain
    from predictor.training.trained_phi import TrainedPhi, load_phi, train_phi

# Loaded on first use: a name waits for torch only where it needs it.
__getattr__, __dir__ = lazily(__name__)
