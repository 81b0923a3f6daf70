"""A classifier as one file: its rule (phi, or a centre), the base parameters and every example it learnt from.

Safetensors, no pickle. Version 1, which had a phi and no number, is read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actstore.errors import DamagedError, InvalidInputError
from actstore.storage.tensor_file import below, read_tensors, write_tensors
from predictor.classifier.classifier import Classifier
from predictor.classifier.unknown import Unknown
from predictor.phi.rule import PhiRule, Rule, rule_from_file

KIND = "classifier"
VERSION = 2
_REMEDY = "make it again with `ppa adapt`"


def save_classifier(path: Path | str, classifier: Classifier) -> None:
    tensors, rule = classifier.rule.to_file()
    tensors = {f"rule.{name}": tensor for name, tensor in tensors.items()}
    tensors["base_parameters"], tensors["base_bias"] = classifier.base_parameters, classifier.base_bias
    examples = list(classifier.support.values())
    tensors["support"] = torch.cat(examples) if examples else torch.empty(0, classifier.dim)
    about = {
        "version": VERSION,
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
    if not Path(path).is_file():
        raise InvalidInputError(
            f"no classifier at {path}; make one with `ppa adapt --support PHOTOS/ --out {path}`, or say where it is "
            "with --classifier"
        )
    tensors, about = read_tensors(Path(path), KIND, _REMEDY)
    if about.get("version", 1) not in (1, VERSION):
        raise InvalidInputError(
            f"{path} is of version {about['version']} of classifier files, expected at most {VERSION}; "
            "a later actstore wrote it: install that one"
        )
    unknown = about.get("unknown")
    try:
        classifier = Classifier(
            _rule(tensors, about), about["base"], tensors["base_parameters"], about["aggregate"], about["novel_bias"],
            about["about"], tensors.get("base_bias"), None if unknown is None else Unknown.from_json(unknown),
        )  # fmt: skip
        counts = [count for _, count in about["novel"]]
        examples = torch.split(tensors["support"], counts)
        classifier.restore({name: rows for (name, _), rows in zip(about["novel"], examples, strict=True)})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DamagedError(f"{path} is damaged: {error}; {_REMEDY}") from error
    return classifier


def _rule(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Rule:
    if "version" not in about:
        return rule_from_file(PhiRule.kind, below(tensors, "phi."), about["phi"])
    return rule_from_file(about["rule"]["kind"], below(tensors, "rule."), about["rule"]["spec"])
