"""A classifier without this library: a plain linear layer with a row-to-category map, or an ONNX graph."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.storage.atomic_file import as_utf8, write_atomic
from predictor.classifier.classifier import Classifier
from predictor.classifier.presentation import KEY, display, displays
from predictor.classifier.scoring import LinearRows
from predictor.classifier.unknown import PROFILE, TEMPERATURE

CHECKED_ROWS = 256
OPSET = 18  # the first whose Resize can average the pixels it leaves out
TOP = 5
Values = Sequence[tuple[str, int, Sequence[Any]]]  # name, type and shape of inputs or outputs


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
    """Say where the names of the categories of an export go: a .json file of the same name.

    Args:
        path: the file of the export.

    Raises:
        InvalidInputError: the export itself is to end in .json.

    Examples:
        >>> from pathlib import Path
        >>> predictor.names_file(Path("classifier.pt")).name
        'classifier.json'
    """
    if path.suffix == ".json":
        raise InvalidInputError(f"{path} is where the category names go; give the export another ending")
    return path.with_suffix(".json")


def write_names(classifier: Classifier, path: Path) -> None:
    about = {**classifier.about, "categories": list(classifier.categories), "dim": classifier.dim}
    if shown := displays(classifier):
        about[KEY] = shown
    write_atomic(names_file(path), as_utf8(json.dumps(about, indent=1, ensure_ascii=False)))


def make_model(name: str, nodes: Sequence[Any], inputs: Values, outputs: Values, constants: Mapping[str, Any]) -> Any:
    from onnx import helper

    read, written = ([helper.make_tensor_value_info(*value) for value in values] for values in (inputs, outputs))
    graph = helper.make_graph(nodes, name, read, written, _initializers(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="actstore")
    model.ir_version = 9  # what opset 18 came with; newer ones shut out older runtimes
    return model


def _extend(model: Any, nodes: Sequence[Any], outputs: Values, constants: Mapping[str, Any]) -> None:
    from onnx import helper

    model.graph.initializer.extend(_initializers(constants))
    model.graph.node.extend(nodes)
    model.graph.output.extend([helper.make_tensor_value_info(*value) for value in outputs])


def _initializers(constants: Mapping[str, Any]) -> list[Any]:
    from onnx import numpy_helper

    return [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]


def classifier_graph(classifier: Classifier) -> Any:
    """activations (n, dim) -> scores, probabilities (n, n_categories)."""
    from onnx import TensorProto, helper
    from onnx.helper import make_node

    rows, names, queries = classifier.rows, classifier.categories, "activations"
    constants: dict[str, Any] = {
        "weight": rows.weight.numpy(), "bias": rows.bias.numpy(), "last": np.array([2], np.int64),
        "rows_of_category": rows_of_category(rows, len(names)),
    }  # fmt: skip
    nodes = []
    if classifier.rule.query_scale is not None:
        queries, scale = "queries", classifier.rule.query_scale.detach().numpy()
        constants |= {"query_scale": scale, "tiny": np.float32(1e-12), "axis": np.array([1], np.int64)}
        nodes += [
            make_node("ReduceL2", ["activations", "axis"], ["length"], keepdims=1),
            make_node("Max", ["length", "tiny"], ["safe_length"]),
            make_node("Div", ["activations", "safe_length"], ["direction"]),
            make_node("Mul", ["direction", "query_scale"], ["queries"]),
        ]
    nodes += [
        make_node("Gemm", [queries, "weight", "bias"], ["row_scores"], transB=1),
        make_node("Gather", ["row_scores", "rows_of_category"], ["grouped"], axis=1),  # (n, category, rows)
        make_node("ReduceMax", ["grouped", "last"], ["scores"], keepdims=0),
        make_node("Softmax", ["scores"], ["probabilities"], axis=1),
    ]
    outputs = [(name, TensorProto.FLOAT, ["n", len(names)]) for name in ("scores", "probabilities")]
    inputs = [("activations", TensorProto.FLOAT, ["n", classifier.dim])]
    model = make_model("classifier", nodes, inputs, outputs, constants)
    helper.set_model_props(model, {"categories": json.dumps(names, ensure_ascii=False)})
    return model


def rows_of_category(rows: LinearRows, n_categories: int) -> NDArray[np.int64]:
    """(n_categories, most rows): where a category has fewer rows, its last one is repeated; a maximum stays."""
    category = rows.category.numpy()
    last = np.searchsorted(category, np.arange(n_categories), side="right") - 1
    first = np.searchsorted(category, np.arange(n_categories), side="left")
    most = int((last - first).max()) + 1
    table: NDArray[np.int64] = np.minimum(first[:, None] + np.arange(most)[None, :], last[:, None])
    return table


def add_names(model: Any, classifier: Classifier) -> None:
    """Outputs names, top_probabilities and places, (1, top) each, best first, beside scores and probabilities.

    names: as they are shown. places: among `categories` of the metadata, in the order of the scores.
    """
    from onnx import TensorProto, helper
    from onnx.helper import make_node

    top = min(TOP, len(classifier.categories))
    shown: NDArray[np.object_] = np.array([display(classifier, name) for name in classifier.categories], object)
    nodes = [
        make_node("TopK", ["scores", "top"], ["top_scores", "places"], axis=1),
        make_node("GatherElements", ["probabilities", "places"], ["top_probabilities"], axis=1),
        make_node("Gather", ["shown_names", "places"], ["names"], axis=0),
    ]
    kinds = {"names": TensorProto.STRING, "top_probabilities": TensorProto.FLOAT, "places": TensorProto.INT64}
    outputs = [(name, kind, [1, top]) for name, kind in kinds.items()]
    _extend(model, nodes, outputs, {"shown_names": shown, "top": np.array([top], np.int64)})
    helper.set_model_props(model, {"categories": json.dumps(classifier.categories, ensure_ascii=False)})


@torch.no_grad()
def add_known(model: Any, classifier: Classifier, activations: str) -> None:
    """`Classifier.is_known`: outputs familiarity (1,) and known (1,) bool, where the classifier has a threshold.
    activations: the name of the (1, dim) in the graph."""
    from onnx import TensorProto
    from onnx.helper import make_node

    if classifier.threshold is None:
        return
    named = _cosine_nodes if classifier.before_background is None else _background_nodes
    nodes, constants = named(classifier, activations)
    nodes += [
        make_node("ReduceMax", ["alike", "known_axis"], ["familiarity"], keepdims=0),
        make_node("GreaterOrEqual", ["familiarity", "known_threshold"], ["known"]),
    ]
    constants |= {
        "known_threshold": np.array([classifier.threshold], np.float32),
        "known_axis": np.array([1], np.int64), "known_tiny": np.array(1e-12, np.float32),
    }  # fmt: skip
    _extend(model, nodes, [("familiarity", TensorProto.FLOAT, [1]), ("known", TensorProto.BOOL, [1])], constants)


def _cosine_nodes(classifier: Classifier, activations: str) -> tuple[list[Any], dict[str, Any]]:
    """The cosines with all categories, `alike` (1, n_categories)."""
    from onnx.helper import make_node

    first, rule, weight = len(classifier.base), classifier.fitted, classifier.rows.weight
    novel, point = rule.directions(weight[first:])  # unit vectors, and the point they are seen from
    shift = torch.zeros(len(weight))
    shift[:first] = classifier.base_shift
    constants = {
        "known_directions": torch.cat([rule.base_directions(weight[:first]), novel]).numpy(),  # (rows, dim)
        "known_point": point.numpy(), "known_shift": shift.numpy(),
    }  # fmt: skip
    # read as unit vectors of some length: a graph of the classifier has them already
    read = activations if rule.query_scale is None else "queries"
    nodes = [*_seen_nodes(read), make_node("Gemm", ["seen", "known_directions", "known_shift"], ["alike"], transB=1)]
    return nodes, constants


def _seen_nodes(read: str) -> list[Any]:
    """`seen` (1, dim), the unit vector from the point."""
    from onnx.helper import make_node

    return [
        make_node("Sub", [read, "known_point"], ["from_point"]),
        make_node("ReduceL2", ["from_point", "known_axis"], ["distance"], keepdims=1),
        make_node("Max", ["distance", "known_tiny"], ["safe_distance"]),
        make_node("Div", ["from_point", "safe_distance"], ["seen"]),
    ]


def _background_nodes(classifier: Classifier, activations: str) -> tuple[list[Any], dict[str, Any]]:
    """The same of `FittedBackground.alike`."""
    from onnx.helper import make_node

    fitted = classifier.before_background
    assert fitted is not None
    background, (directions, profiles) = fitted.background, fitted.rows()
    constants = {
        "known_directions": ((1 - PROFILE) * directions).numpy(), "known_profiles": (PROFILE * profiles).numpy(),
        "known_point": fitted.centre.numpy(), "background_bias": (background.bias / TEMPERATURE).numpy(),
        "background_weight": (background.weight / TEMPERATURE).numpy(),
    }  # fmt: skip
    nodes = [
        make_node("Abs", [activations], ["sizes"]),
        make_node("Sqrt", ["sizes"], ["size_roots"]),
        make_node("Sign", [activations], ["signs"]),
        make_node("Mul", ["signs", "size_roots"], ["roots"]),
        *_seen_nodes("roots"),
        make_node("Gemm", [activations, "background_weight", "background_bias"], ["background_scores"], transB=1),
        make_node("Softmax", ["background_scores"], ["background_shares"], axis=1),
        make_node("Sqrt", ["background_shares"], ["profile"]),
        make_node("Gemm", ["profile", "known_profiles"], ["alike_profiles"], transB=1),
        make_node("Gemm", ["seen", "known_directions", "alike_profiles"], ["alike"], transB=1),
    ]
    return nodes, constants
