"""`Classifier.is_known` as nodes of an ONNX graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from predictor.classifier.classifier import Classifier


def add_known(model: Any, classifier: Classifier, activations: str) -> None:
    """Outputs familiarity (1,) and known (1,) bool, where the classifier has a threshold. activations: the name of the
    (1, dim) in the graph."""
    from onnx import TensorProto, helper, numpy_helper

    threshold = classifier.threshold
    if threshold is None:
        return
    constants = {**_directions(classifier), "known_threshold": np.array([threshold], np.float32)}
    constants |= {"known_axis": np.array([1], np.int64), "known_tiny": np.array(1e-12, np.float32)}
    model.graph.initializer.extend([numpy_helper.from_array(value, name) for name, value in constants.items()])
    nodes, read = [], activations
    scale = classifier.fitted.query_scale
    if scale is not None:  # read as unit vectors of this length: a graph of the classifier has them already
        read = "queries"
    nodes += [
        helper.make_node("Sub", [read, "known_point"], ["from_point"]),
        helper.make_node("ReduceL2", ["from_point", "known_axis"], ["distance"], keepdims=1),
        helper.make_node("Max", ["distance", "known_tiny"], ["safe_distance"]),
        helper.make_node("Div", ["from_point", "safe_distance"], ["seen"]),
        helper.make_node("Gemm", ["seen", "known_directions", "known_shift"], ["cosines"], transB=1),
        helper.make_node("ReduceMax", ["cosines", "known_axis"], ["familiarity"], keepdims=0),
        helper.make_node("GreaterOrEqual", ["familiarity", "known_threshold"], ["known"]),
    ]
    model.graph.node.extend(nodes)
    model.graph.output.extend([
        helper.make_tensor_value_info("familiarity", TensorProto.FLOAT, [1]),
        helper.make_tensor_value_info("known", TensorProto.BOOL, [1]),
    ])  # fmt: skip


@torch.no_grad()
def _directions(classifier: Classifier) -> dict[str, Any]:
    """Unit vectors (rows, dim), the point they are seen from, and what is added to the cosine of each row."""
    first, rule, weight = len(classifier.base), classifier.fitted, classifier.rows.weight
    novel, point = rule.directions(weight[first:])
    shift = torch.zeros(len(weight))
    unknown, own = classifier.unknown, classifier._fitted_threshold
    if first and own is not None and unknown is not None and unknown.base_threshold is not None:
        shift[:first] = own - unknown.base_threshold
    both = torch.cat([rule.base_directions(weight[:first]), novel])
    return {"known_directions": both.numpy(), "known_point": point.numpy(), "known_shift": shift.numpy()}
