"""A classifier as one file: its rule (phi, or a centre), the base parameters and every example it learnt from.

Safetensors, no pickle. A file is set to the constant that calibration found for its phi, or for the network's own
classifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from actstore.errors import DamagedError, InvalidInputError
from actstore.storage.tensor_file import below, read_tensors, write_tensors
from predictor.classifier.classifier import Classifier
from predictor.classifier.unknown import Background, Unknown
from predictor.phi.rule import OwnClassifier, rule_from_file
from predictor.protocol.calibration import Calibration, nearest_fit
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.head import head_for
from predictor.training.trained_phi import TrainedPhi

KIND = "classifier"
VERSION = 3  # 2: without a background
_REMEDY = "make it again with `ppa adapt`"


def save_classifier(path: Path | str, classifier: Classifier) -> None:
    """Write a classifier with its examples to a file.

    Args:
        path: the file, such as "classifier.safetensors". Where it is a link, what it leads to is replaced.
        classifier: the classifier.
    """
    tensors, rule = classifier.rule.to_file()
    tensors = {f"rule.{name}": tensor for name, tensor in tensors.items()}
    tensors["base_parameters"], tensors["base_bias"] = classifier.base_parameters, classifier.base_bias
    examples = list(classifier.support.values())
    if classifier.background is not None:
        tensors["background.weight"] = classifier.background.weight.half()
        tensors["background.bias"] = classifier.background.bias
    tensors["support"] = torch.cat(examples) if examples else torch.empty(0, classifier.dim)
    about = {
        "version": VERSION if classifier.background is not None else 2,
        "rule": {"kind": classifier.rule.kind, "spec": rule},
        "base": list(classifier.base),
        "novel": [[name, len(rows)] for name, rows in classifier.support.items()],
        "aggregate": classifier.aggregate,
        "novel_bias": classifier.novel_bias,
        "about": classifier.about,
        "unknown": None if classifier.unknown is None else classifier.unknown.to_json(),
    }
    write_tensors(Path(path).resolve(), KIND, tensors, about)  # a link stays one, and what it leads to changes


def load_classifier(path: Path | str) -> Classifier:
    """Open the file of a classifier.

    Args:
        path: the file.

    Returns:
        The classifier, without its network, which is loaded when images are given to it.

    Raises:
        InvalidInputError: there is no such file, or a later version wrote it.
        DamagedError: the file is corrupt.

    Examples:
        >>> predictor.save_classifier("classifier.safetensors", classifier)
        >>> predictor.load_classifier("classifier.safetensors").categories
        ('ant', 'bee', 'cat')
    """
    if Path(path).is_dir():
        raise InvalidInputError(f"{path} is a folder; expected the file of a classifier")
    if not Path(path).is_file():
        raise InvalidInputError(
            f"no classifier at {path}; make one with `ppa adapt --support PHOTOS/ --out {path}`, or say where it is "
            "with --classifier"
        )
    tensors, about = read_tensors(Path(path), KIND, _REMEDY)
    if (version := about.get("version", 1)) not in (2, VERSION):
        raise InvalidInputError(
            f"{path} is of version {version} of classifier files, expected 2 or {VERSION}; {_REMEDY}, or install the "
            "actstore that wrote it"
        )
    unknown, beside = about.get("unknown"), below(tensors, "background.")
    try:
        rule = about["rule"]
        classifier = Classifier(
            rule_from_file(rule["kind"], below(tensors, "rule."), rule["spec"]), about["base"],
            tensors["base_parameters"], about["aggregate"], about["novel_bias"],
            about["about"], tensors.get("base_bias"), None if unknown is None else Unknown.from_json(unknown),
            Background(beside["weight"].float(), beside["bias"]) if beside else None,
        )  # fmt: skip
        counts = [count for _, count in about["novel"]]
        examples = torch.split(tensors["support"], counts)
        classifier.restore({name: rows for (name, _), rows in zip(about["novel"], examples, strict=True)})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DamagedError(f"{path} is damaged: {error}; {_REMEDY}") from error
    return classifier


def open_for_calibration(path: Path, calibrated: TrainedPhi | OwnClassifier, categories: CategorySplit) -> Classifier:
    """Open the file of a classifier that is to be calibrated.

    Args:
        path: the file.
        calibrated: the method whose constant is fitted. The classifier must score as it does, since scores of another
            one differ in their scale.
        categories: base and novel categories.

    Raises:
        InvalidInputError: the classifier was made of another phi or has another base.
    """
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
    """Set the constant of a classifier by what was fitted for its number of examples, and save it.

    Args:
        path: the file of the classifier.
        classifier: the classifier.
        fits: what `calibrate` returned.

    Raises:
        InvalidInputError: the calibration failed, so that the file was left as it is.
    """
    fit = nearest_fit(fits, classifier.typical_shots())
    if not fit.helps:
        raise InvalidInputError(f"{path} was left as it is: calibration failed: {fit.failed}")
    classifier.calibrate(fit.novel_bias, fit.aggregate)
    save_classifier(path, classifier)


def set_constant(path: str | Path, novel_bias: float, aggregate: str | None = None) -> Classifier:
    """Set the constant of a classifier's file by hand.

    Args:
        path: the file.
        novel_bias: the constant, which is added to every novel score.
        aggregate: how examples are combined, "max" or "mean"; by default as before.

    Returns:
        The classifier.

    Examples:
        >>> classifier.save("classifier.safetensors")
        >>> predictor.set_constant("classifier.safetensors", -0.5).novel_bias
        -0.5
    """
    classifier = load_classifier(Path(path))
    classifier.calibrate(novel_bias, aggregate)  # type: ignore[arg-type]
    save_classifier(Path(path), classifier)
    return classifier
