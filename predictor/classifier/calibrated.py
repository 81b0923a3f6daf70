"""A classifier that is given the constant that calibration found for its phi, or for the network's own classifier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from actstore.errors import InvalidInputError
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import load_classifier, save_classifier
from predictor.phi.recogniser import OwnClassifier
from predictor.protocol.calibration import Calibration, nearest_fit
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.head import head_for
from predictor.training.trained_phi import TrainedPhi


def open_for_calibration(path: Path, calibrated: TrainedPhi | OwnClassifier, categories: CategorySplit) -> Classifier:
    """The classifier to set, which must score as what is calibrated does: scores of another differ in their scale."""
    classifier = load_classifier(path)
    if isinstance(calibrated, OwnClassifier):
        head = head_for(calibrated.given, categories.base, classifier.dim)
        if classifier.base != categories.base or not classifier.base_parameters.equal(head.weight):
            raise InvalidInputError(f"{path} has another base than what is calibrated; calibrate that one")
        return classifier
    ours, theirs = calibrated.phi.state_dict(), classifier.phi.state_dict()
    if ours.keys() != theirs.keys() or any(not ours[name].equal(theirs[name]) for name in ours):
        raise InvalidInputError(f"{path} was made with another phi than {calibrated.path}; calibrate that one")
    return classifier


def apply_calibrations(path: Path, classifier: Classifier, fits: Sequence[Calibration]) -> None:
    """Set it by the fit for its number of examples, and keep it."""
    fit = nearest_fit(fits, classifier.typical_shots())
    if fit.failed:
        raise InvalidInputError(f"{path} was left as it is: calibration failed: {fit.failed}")
    classifier.calibrate(fit.novel_bias, fit.aggregate)
    save_classifier(path, classifier)


def set_constant(path: str | Path, novel_bias: float, aggregate: str | None = None) -> Classifier:
    """Set the constant of a classifier's file by hand."""
    classifier = load_classifier(Path(path))
    classifier.calibrate(novel_bias, aggregate)  # type: ignore[arg-type]
    save_classifier(Path(path), classifier)
    return classifier
