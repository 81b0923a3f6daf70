"""A transform as an ONNX graph: an image of any size -> the pixels that a backbone reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from actstore.backbones.network import Transform
from predictor.classifier.classifier_graph import make_model

_MODES: dict[str, dict[str, Any]] = {
    "bilinear": {"mode": "linear"},
    "bicubic": {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},  # Pillow's kernel and borders
}


def image_graph(transform: Transform) -> Any:
    """image (height, width, 3) uint8 RGB -> pixels (1, 3, crop, crop) float32: resized, cropped, normalised.

    As Pillow does it: first the width, then the height, each rounded to whole values of 0 to 255.
    """
    from onnx import TensorProto
    from onnx.helper import make_node

    resizing = {"antialias": 1, "coordinate_transformation_mode": "half_pixel", **_MODES[transform.interpolation]}
    nodes = [
        make_node("Transpose", ["image"], ["planes"], perm=[2, 0, 1]),
        make_node("Unsqueeze", ["planes", "first"], ["batch"]),
        make_node("Cast", ["batch"], ["values"], to=TensorProto.FLOAT),
        # (height, width): the shorter one becomes `resize`, the other one keeps the shape, cut off
        make_node("Shape", ["batch"], ["sides"], start=2),
        make_node("ReduceMin", ["sides"], ["shorter"], keepdims=1),
        make_node("Mul", ["sides", "resize"], ["enlarged"]),
        make_node("Div", ["enlarged", "shorter"], ["scaled"]),  # of integers
        make_node("Slice", ["sides", "first", "second"], ["height"]),
        make_node("Slice", ["scaled", "second", "third"], ["scaled_width"]),
        make_node("Concat", ["one_image", "height", "scaled_width"], ["wide_shape"], axis=0),
        make_node("Concat", ["one_image", "scaled"], ["scaled_shape"], axis=0),
    ]
    for source, shape, target in (("values", "wide_shape", "wide"), ("wide", "scaled_shape", "resized")):
        nodes += [
            make_node("Resize", [source, "", "", shape], [f"{target}_exactly"], **resizing),
            make_node("Add", [f"{target}_exactly", "half"], [f"{target}_above"]),  # halves are rounded up, as in Pillow
            make_node("Floor", [f"{target}_above"], [f"{target}_whole"]),
            make_node("Clip", [f"{target}_whole", "black", "white"], [target]),
        ]
    nodes += [
        # the centre; half a pixel is rounded to the even side, in ONNX as in Python
        make_node("Sub", ["scaled", "crop"], ["spare"]),
        make_node("Cast", ["spare"], ["spare_exactly"], to=TensorProto.FLOAT),
        make_node("Mul", ["spare_exactly", "half"], ["start_exactly"]),
        make_node("Round", ["start_exactly"], ["start_whole"]),
        make_node("Cast", ["start_whole"], ["start"], to=TensorProto.INT64),
        make_node("Add", ["start", "crop"], ["end"]),
        make_node("Slice", ["resized", "start", "end", "side_axes"], ["centre"]),
        make_node("Div", ["centre", "white"], ["shares"]),
        make_node("Sub", ["shares", "mean"], ["centred"]),
        make_node("Div", ["centred", "std"], ["pixels"]),
    ]
    inputs = [("image", TensorProto.UINT8, ["height", "width", 3])]
    outputs = [("pixels", TensorProto.FLOAT, [1, 3, transform.crop, transform.crop])]
    return make_model("image", nodes, inputs, outputs, _constants(transform))


def _constants(transform: Transform) -> dict[str, Any]:
    integers = {"first": 0, "second": 1, "third": 2, "resize": transform.resize, "crop": transform.crop}
    floats = {"black": 0.0, "white": 255.0, "half": 0.5}
    rgb = {name: np.array(getattr(transform, name), np.float32).reshape(1, 3, 1, 1) for name in ("mean", "std")}
    return {
        **{name: np.array([value], np.int64) for name, value in integers.items()},
        **{name: np.array(value, np.float32) for name, value in floats.items()},
        "one_image": np.array([1, 3], np.int64), "side_axes": np.array([2, 3], np.int64), **rgb,
    }  # fmt: skip
