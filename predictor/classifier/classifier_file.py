"""A classifier as one file: phi, the base parameters and every example it learnt from. Safetensors, no pickle."""

from __future__ import annotations

from pathlib import Path

import torch

from actstore.errors import DamagedError
from actstore.storage.tensor_file import below, read_tensors, write_tensors
from predictor.classifier.classifier import Classifier
from predictor.phi.network import build_phi

KIND = "classifier"
_REMEDY = "make it again with `ppa adapt`"


def save_classifier(path: Path | str, classifier: Classifier) -> None:
    tensors = {f"phi.{name}": tensor for name, tensor in classifier.phi.state_dict().items()}
    tensors["base_parameters"] = classifier.base_parameters
    examples = list(classifier.support.values())
    tensors["support"] = torch.cat(examples) if examples else torch.empty(0, classifier.dim)
    about = {
        "phi": classifier.phi.spec.to_json(),
        "base": list(classifier.base),
        "novel": [[name, len(rows)] for name, rows in classifier.support.items()],
        "aggregate": classifier.aggregate,
        "novel_bias": classifier.novel_bias,
        "about": classifier.about,
    }
    write_tensors(Path(path).resolve(), KIND, tensors, about)  # a link stays one, and what it leads to changes


def load_classifier(path: Path | str) -> Classifier:
    tensors, about = read_tensors(Path(path), KIND, _REMEDY)
    try:
        phi = build_phi(about["phi"], below(tensors, "phi."))
        classifier = Classifier(
            phi, about["base"], tensors["base_parameters"], about["aggregate"], about["novel_bias"], about["about"]
        )
        counts = [count for _, count in about["novel"]]
        examples = torch.split(tensors["support"], counts)
        classifier.adapt_all({name: rows for (name, _), rows in zip(about["novel"], examples, strict=True)})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DamagedError(f"{path} is damaged: {error}; {_REMEDY}") from error
    return classifier
