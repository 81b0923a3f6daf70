"""A classifier as a graph of ONNX: of activations, or of images, with the network's own graph in the middle.

Nodes are written in ONNX's textual form; a number in `Cast` is a type: 1 float32, 7 int64.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.backbones.network import Transform
from actstore.errors import InvalidInputError
from predictor.classifier.classifier import Classifier
from predictor.classifier.presentation import display
from predictor.classifier.unknown import PROFILE, TEMPERATURE
from predictor.phi.rule import LinearRows

OPSET = 18  # the first whose Resize can average the pixels it leaves out
TOP = 5
KNOWN = ["float[1] familiarity", "bool[1] known"]  # see `Classifier.is_known`
Constants = dict[str, Any]
_RESIZE = {
    "bilinear": 'mode = "linear", antialias = 1, coordinate_transformation_mode = "half_pixel"',
    "bicubic": 'mode = "cubic", antialias = 1, coordinate_transformation_mode = "half_pixel", cubic_coeff_a = -0.5, '
    "exclude_outside = 1",  # Pillow's kernel and borders
}
_SCORES = """
row_scores = Gemm <transB = 1> (queries, weight, bias)
grouped = Gather <axis = 1> (row_scores, rows_of_category)
scores = ReduceMax <keepdims = 0> (grouped, last)
probabilities = Softmax <axis = 1> (scores)
"""
_UNIT_QUERIES = """
length = ReduceL2 <keepdims = 1> (activations, axis)
safe_length = Max (length, tiny)
direction = Div (activations, safe_length)
queries = Mul (direction, query_scale)
"""
_NAMES = """
top_scores, places = TopK <axis = 1> (scores, top)
top_probabilities = GatherElements <axis = 1> (probabilities, places)
names = Gather <axis = 0> (shown_names, places)
"""
_SEEN = """
from_point = Sub ({read}, known_point)
distance = ReduceL2 <keepdims = 1> (from_point, known_axis)
safe_distance = Max (distance, known_tiny)
seen = Div (from_point, safe_distance)
"""
_COSINES = f"{_SEEN.format(read='queries')} alike = Gemm <transB = 1> (seen, known_directions, known_shift)"
_BACKGROUND = f"""
sizes = Abs (activations)
size_roots = Sqrt (sizes)
signs = Sign (activations)
roots = Mul (signs, size_roots)
{_SEEN.format(read="roots")}
background_scores = Gemm <transB = 1> (activations, background_weight, background_bias)
background_shares = Softmax <axis = 1> (background_scores)
profile = Sqrt (background_shares)
alike_profiles = Gemm <transB = 1> (profile, known_profiles)
alike = Gemm <transB = 1> (seen, known_directions, alike_profiles)
"""
_KNOWN = """
familiarity = ReduceMax <keepdims = 0> (alike, known_axis)
known = GreaterOrEqual (familiarity, known_threshold)
"""
# As Pillow does it: first the width, then the height, each rounded to whole values of 0 to 255, halves up. The shorter
# side becomes `resize`, the other one keeps the shape, cut off. Half a pixel beside the centre is rounded to the even
# side, in ONNX as in Python.
_PIXELS = """
planes = Transpose <perm = [2, 0, 1]> (image)
batch = Unsqueeze (planes, first)
values = Cast <to = 1> (batch)
sides = Shape <start = 2> (batch)
shorter = ReduceMin <keepdims = 1> (sides)
enlarged = Mul (sides, resize)
scaled = Div (enlarged, shorter)
height = Slice (sides, first, second)
scaled_width = Slice (scaled, second, third)
wide_shape = Concat <axis = 0> (one_image, height, scaled_width)
scaled_shape = Concat <axis = 0> (one_image, scaled)
wide_exactly = Resize <{how}> (values, "", "", wide_shape)
wide_above = Add (wide_exactly, half)
wide_whole = Floor (wide_above)
wide = Clip (wide_whole, black, white)
resized_exactly = Resize <{how}> (wide, "", "", scaled_shape)
resized_above = Add (resized_exactly, half)
resized_whole = Floor (resized_above)
resized = Clip (resized_whole, black, white)
spare = Sub (scaled, crop)
spare_exactly = Cast <to = 1> (spare)
start_exactly = Mul (spare_exactly, half)
start_whole = Round (start_exactly)
start = Cast <to = 7> (start_whole)
end = Add (start, crop)
centre = Slice (resized, start, end, side_axes)
shares = Div (centre, white)
centred = Sub (shares, mean)
network_pixels = Div (centred, std)
"""


def import_onnx(*modules: str) -> list[Any]:
    """Those that an export needs, which not every installation has."""
    try:
        return [import_module(name) for name in modules]
    except ModuleNotFoundError as error:
        raise InvalidInputError(f"ONNX export needs {error.name}: pip install 'actstore[onnx]'") from None


def classifier_graph(classifier: Classifier) -> Any:
    """activations (n, dim) -> scores, probabilities (n, n_categories)."""
    nodes, constants = score_nodes(classifier)
    inputs, count = f"float[n, {classifier.dim}] activations", len(classifier.categories)
    return make_model(
        [nodes], inputs, f"float[n, {count}] scores, float[n, {count}] probabilities", constants, classifier
    )


@torch.no_grad()
def whole_graph(classifier: Classifier, transform: Transform, network: Any) -> Any:
    """image (height, width, 3) uint8 RGB of any size -> scores and probabilities (1, n_categories); names,
    top_probabilities and places (1, top), best first; where the classifier has a threshold familiarity (1,) and known
    (1,), see `Classifier.is_known`.

    names: as they are shown. places: among `categories` of the metadata, in the order of the scores. network: a model
    pixels (1, 3, crop, crop) -> activations (1, dim).
    """
    (compose,) = import_onnx("onnx.compose")
    categories = classifier.categories
    count, top = len(categories), min(TOP, len(categories))
    shown: NDArray[np.object_] = np.array([display(classifier, name) for name in categories], object)
    pixels, constants = pixel_nodes(transform)
    scores, more = score_nodes(classifier)
    constants |= more | {"shown_names": shown, "top": np.array([top], np.int64)}
    outputs = [f"float[1, {count}] scores", f"float[1, {count}] probabilities", f"string[1, {top}] names",
               f"float[1, {top}] top_probabilities", f"int64[1, {top}] places"]  # fmt: skip
    nodes = f"activations = Identity (network_activations) {scores} {_NAMES}"
    if classifier.threshold is not None:
        known, more = known_nodes(classifier)
        nodes, constants = nodes + known, constants | more
        outputs += KNOWN
    parts = [pixels, compose.add_prefix(network, "network_").graph, nodes]
    return make_model(parts, "uint8[height, width, 3] image", ", ".join(outputs), constants, classifier)


def known_nodes(classifier: Classifier) -> tuple[str, Constants]:
    """`KNOWN` of activations, and of the queries that scores are made of."""
    alike, constants = _alike_nodes(classifier)
    return f"{alike} {_KNOWN}", constants | {
        "known_threshold": np.array([classifier.threshold], np.float32),
        "known_axis": np.array([1], np.int64), "known_tiny": np.array(1e-12, np.float32),
    }  # fmt: skip


def make_model(
    parts: Sequence[Any], inputs: str, outputs: str, constants: Constants, classifier: Classifier | None = None
) -> Any:
    """parts: the text of nodes, or graphs, one after the other."""
    helper, numpy_helper, parser = import_onnx("onnx.helper", "onnx.numpy_helper", "onnx.parser")
    whole = parser.parse_graph(f"actstore ({inputs}) => ({outputs}) {{}}")
    for part in parts:
        graph = parser.parse_graph(f"part () => () {{ {part} }}") if isinstance(part, str) else part
        whole.node.extend(graph.node)
        whole.initializer.extend(graph.initializer)
    whole.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items())
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="actstore")
    model.ir_version = 9  # what opset 18 came with; newer ones shut out older runtimes
    if classifier is not None:
        helper.set_model_props(model, {"categories": json.dumps(classifier.categories, ensure_ascii=False)})
    return model


def pixel_nodes(transform: Transform) -> tuple[str, Constants]:
    """image (height, width, 3) uint8 RGB -> network_pixels (1, 3, crop, crop) float32: resized, cropped, normalised."""
    integers = {"first": 0, "second": 1, "third": 2, "resize": transform.resize, "crop": transform.crop}
    floats = {"black": 0.0, "white": 255.0, "half": 0.5}
    rgb = {name: np.array(getattr(transform, name), np.float32).reshape(1, 3, 1, 1) for name in ("mean", "std")}
    return _PIXELS.format(how=_RESIZE[transform.interpolation]), {
        **{name: np.array([value], np.int64) for name, value in integers.items()},
        **{name: np.array(value, np.float32) for name, value in floats.items()},
        "one_image": np.array([1, 3], np.int64), "side_axes": np.array([2, 3], np.int64), **rgb,
    }  # fmt: skip


def score_nodes(classifier: Classifier) -> tuple[str, Constants]:
    rows, scale = classifier.rows, classifier.rule.query_scale
    constants = {
        "weight": rows.weight.numpy(), "bias": rows.bias.numpy(), "last": np.array([2], np.int64),
        "rows_of_category": rows_of_category(rows, len(classifier.categories)),  # grouped: (n, category, rows)
    }  # fmt: skip
    if scale is None:
        return f"queries = Identity (activations) {_SCORES}", constants
    unit = {"query_scale": scale.detach().numpy(), "tiny": np.float32(1e-12), "axis": np.array([1], np.int64)}
    return _UNIT_QUERIES + _SCORES, constants | unit


def rows_of_category(rows: LinearRows, n_categories: int) -> NDArray[np.int64]:
    """(n_categories, most rows): where a category has fewer rows, its last one is repeated; a maximum stays."""
    category = rows.category.numpy()
    last = np.searchsorted(category, np.arange(n_categories), side="right") - 1
    first = np.searchsorted(category, np.arange(n_categories), side="left")
    most = int((last - first).max()) + 1
    table: NDArray[np.int64] = np.minimum(first[:, None] + np.arange(most)[None, :], last[:, None])
    return table


def _alike_nodes(classifier: Classifier) -> tuple[str, Constants]:
    """`alike` (1, n_categories): the cosines with all categories, or what `FittedBackground` gives."""
    if (fitted := classifier.before_background) is not None:
        background, (directions, profiles) = fitted.background, fitted.rows()
        return _BACKGROUND, {
            "known_directions": ((1 - PROFILE) * directions).numpy(), "known_profiles": (PROFILE * profiles).numpy(),
            "known_point": fitted.centre.numpy(), "background_bias": (background.bias / TEMPERATURE).numpy(),
            "background_weight": (background.weight / TEMPERATURE).numpy(),
        }  # fmt: skip
    first, rule, weight = len(classifier.base), classifier.fitted, classifier.rows.weight
    novel, point = rule.directions(weight[first:])  # unit vectors, and the point they are seen from
    shift = torch.zeros(len(weight))
    shift[:first] = classifier.base_shift
    return _COSINES, {
        "known_directions": torch.cat([rule.base_directions(weight[:first]), novel]).numpy(),  # (rows, dim)
        "known_point": point.numpy(), "known_shift": shift.numpy(),
    }  # fmt: skip
