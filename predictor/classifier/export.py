"""A classifier without this library: a plain linear layer with a row-to-category map, or an ONNX graph."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.storage.atomic_file import write_atomic
from predictor.classifier.classifier import Classifier
from predictor.classifier.display_names import KEY, displays
from predictor.classifier.linear_rows import Rows

OPSET = 18
CHECKED_ROWS = 256


def export_torch(classifier: Classifier, path: Path) -> None:
    """A state dict for `nn.Linear(dim, rows)`: weight and bias, besides row_category (rows,) and a .json of names.

    A category's score is the highest of its rows. Where phi reads unit queries, `query_scale` says with which
    scale: normalise an activation, multiply, then apply the layer.
    """
    import io

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
    onnx, onnxruntime = import_onnx("onnx", "onnxruntime")
    names_file(path)  # refused before the work, where it is the export itself
    model = build_graph(classifier)
    onnx.checker.check_model(model)
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    queries = torch.rand(CHECKED_ROWS, classifier.dim, generator=torch.Generator().manual_seed(0))
    (found,) = session.run(["scores"], {"activations": queries.numpy()})
    expected = classifier.scores(queries).numpy()
    difference = float(np.abs(found - expected).max())
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


def build_graph(classifier: Classifier) -> Any:
    """activations (n, dim) -> scores, probabilities (n, n_categories)."""
    from onnx import TensorProto, helper, numpy_helper

    rows, names = classifier.rows, classifier.categories
    constants: dict[str, Any] = {"weight": rows.weight.numpy(), "bias": rows.bias.numpy()}
    nodes, queries = [], "activations"
    if classifier.rule.query_scale is not None:
        constants["query_scale"] = classifier.rule.query_scale.detach().numpy()
        constants["tiny"] = np.float32(1e-12)
        nodes += [
            helper.make_node("ReduceL2", ["activations", "axis"], ["length"], keepdims=1),
            helper.make_node("Max", ["length", "tiny"], ["safe_length"]),
            helper.make_node("Div", ["activations", "safe_length"], ["direction"]),
            helper.make_node("Mul", ["direction", "query_scale"], ["queries"]),
        ]
        constants["axis"] = np.array([1], np.int64)
        queries = "queries"
    nodes.append(helper.make_node("Gemm", [queries, "weight", "bias"], ["row_scores"], transB=1))
    constants["rows_of_category"] = rows_of_category(rows, len(names))
    constants["last"] = np.array([2], np.int64)
    nodes += [
        helper.make_node("Gather", ["row_scores", "rows_of_category"], ["grouped"], axis=1),  # (n, category, rows)
        helper.make_node("ReduceMax", ["grouped", "last"], ["scores"], keepdims=0),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("activations", TensorProto.FLOAT, ["n", classifier.dim])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", len(names)])
         for name in ("scores", "probabilities")],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="actstore")
    model.ir_version = 9  # what opset 18 came with; newer ones shut out older runtimes
    helper.set_model_props(model, {"categories": json.dumps(names, ensure_ascii=False)})
    return model


def rows_of_category(rows: Rows, n_categories: int) -> NDArray[np.int64]:
    """(n_categories, most rows): where a category has fewer rows, its last one is repeated; a maximum stays."""
    category = rows.category.numpy()
    last = np.searchsorted(category, np.arange(n_categories), side="right") - 1
    first = np.searchsorted(category, np.arange(n_categories), side="left")
    most = int((last - first).max()) + 1
    table: NDArray[np.int64] = np.minimum(first[:, None] + np.arange(most)[None, :], last[:, None])
    return table


def names_file(path: Path) -> Path:
    """Where the category names of an export go."""
    if path.suffix == ".json":
        raise InvalidInputError(f"{path} is where the category names go; give the export another ending")
    return path.with_suffix(".json")


def write_names(classifier: Classifier, path: Path) -> None:
    about = {**classifier.about, "categories": list(classifier.categories), "dim": classifier.dim}
    if shown := displays(classifier):
        about[KEY] = shown
    write_atomic(names_file(path), json.dumps(about, indent=1, ensure_ascii=False).encode())
