"""A classifier without this library: a plain linear layer with a row-to-category map, or an ONNX graph."""

from __future__ import annotations

import io
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.storage.atomic_file import as_utf8, write_atomic
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_graph import classifier_graph
from predictor.classifier.display_names import KEY, displays

CHECKED_ROWS = 256


def export_torch(classifier: Classifier, path: Path) -> None:
    """A state dict for `nn.Linear(dim, rows)`: weight and bias, besides row_category (rows,) and a .json of names.

    A category's score is the highest of its rows. Where phi reads unit queries, `query_scale` says with which
    scale: normalise an activation, multiply, then apply the layer.
    """
    names_file(path)  # refused before the work, where it is the export itself
    rows = classifier.rows
    state: dict[str, Tensor] = {"weight": rows.weight, "bias": rows.bias, "row_category": rows.category}
    if classifier.rule.query_scale is not None:
        state["query_scale"] = classifier.rule.query_scale
    file = io.BytesIO()
    torch.save({name: tensor.detach().clone() for name, tensor in state.items()}, file)
    write_atomic(path, file.getvalue())
    write_names(classifier, path)


def export_onnx(classifier: Classifier, path: Path) -> float:
    """A graph activations (n, dim) -> scores and probabilities (n, n_categories), checked with onnxruntime.

    Returns the largest difference of a score from this classifier's, on activations drawn like its parameters.
    """
    import_onnx("onnx", "onnxruntime")
    names_file(path)  # refused before the work, where it is the export itself
    data, session = start_session(classifier_graph(classifier))
    queries = torch.rand(CHECKED_ROWS, classifier.dim, generator=torch.Generator().manual_seed(0))
    (scores,) = session.run(["scores"], {"activations": queries.numpy()})
    expected = classifier.scores(queries).numpy()
    difference = float(np.abs(scores - expected).max())
    if not difference <= 1e-4 * max(1.0, float(np.abs(expected).max())):
        raise InvalidInputError(f"onnxruntime's scores differ by {difference:.3g} from this classifier's; not written")
    write_atomic(path, data)
    write_names(classifier, path)
    return difference


def import_onnx(*modules: str) -> list[Any]:
    """Those that an export needs, which not every installation has."""
    try:
        return [import_module(name) for name in modules]
    except ModuleNotFoundError as error:
        raise InvalidInputError(f"ONNX export needs {error.name}: pip install 'actstore[onnx]'") from None


def start_session(model: Any) -> tuple[bytes, Any]:
    """The graph as it is written, and onnxruntime with it."""
    onnx, onnxruntime = import_onnx("onnx", "onnxruntime")
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data, onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def names_file(path: Path) -> Path:
    """Where the category names of an export go."""
    if path.suffix == ".json":
        raise InvalidInputError(f"{path} is where the category names go; give the export another ending")
    return path.with_suffix(".json")


def write_names(classifier: Classifier, path: Path) -> None:
    about = {**classifier.about, "categories": list(classifier.categories), "dim": classifier.dim}
    if shown := displays(classifier):
        about[KEY] = shown
    write_atomic(names_file(path), as_utf8(json.dumps(about, indent=1, ensure_ascii=False)))
