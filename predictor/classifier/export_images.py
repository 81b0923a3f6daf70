"""A classifier and its network in one ONNX graph: an image in, names and probabilities out."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from actstore.backbones.loading import Backbone, capture
from actstore.backbones.network import Transform
from actstore.errors import InvalidInputError
from actstore.storage.atomic_file import write_atomic
from predictor.classifier.classifier import Classifier
from predictor.classifier.export import (
    OPSET,
    add_known,
    add_names,
    classifier_graph,
    import_onnx,
    make_model,
    names_file,
    start_session,
    write_names,
)
from predictor.classifier.photos import list_images, network_of

if TYPE_CHECKING:
    from predictor.classifier.learning import FilePath

SIDES = ((80, 80), (300, 451), (613, 402), (260, 224))  # (width, height) of the images that a graph is checked with
MAX_CHECKED = 100  # photos that a graph is compared on
TOLERANCE = 0.02  # of a probability: resizing is rounded a little otherwise than Pillow does it
_MODES: dict[str, dict[str, Any]] = {
    "bilinear": {"mode": "linear"},
    "bicubic": {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},  # Pillow's kernel and borders
}


@dataclass(frozen=True)
class Agreement:
    """Of a graph in onnxruntime with this library: images, of them with the same first category, and how far the
    probability of any category of any image was off."""

    images: int
    same: int
    difference: float

    def to_json(self) -> dict[str, Any]:
        return {"checked_images": self.images, "same_first": self.same, "probability_difference": self.difference}


def export_with_network(
    classifier: Classifier, path: Path, check: FilePath | Sequence[FilePath], weights: FilePath | None
) -> Agreement:
    """check: images or folders, of which at most MAX_CHECKED are compared, evenly spaced."""
    items = list_images(check).items
    photos = [item.load() for item in items[:: max(1, len(items) // MAX_CHECKED)][:MAX_CHECKED]]
    return export_with_backbone(classifier, network_of(classifier, weights), path, photos)


def export_with_backbone(
    classifier: Classifier, backbone: Backbone, path: Path, photos: Sequence[Image.Image] = ()
) -> Agreement:
    """Write a graph image (height, width, 3) uint8 RGB of any size -> see `add_names` and `add_known`; checked with
    onnxruntime.

    photos: what it is checked with beside drawn images, in mode RGB; the agreement is of these where there are any.
    """
    if (views := classifier.about.get("network", {}).get("views") or 1) != 1:
        raise InvalidInputError(
            f"the classifier averages {views} views of an image, a graph reads one; learn it again from a store "
            "that was built with --views 1"
        )
    if backbone.transform.channels != 3:
        raise InvalidInputError(f"a graph holds one network, not {backbone.name}; leave out --with-backbone")
    import_onnx("onnx", "onnxruntime")
    names_file(path)  # refused before the work, where it is the export itself
    model = _join(image_graph(backbone.transform), _backbone_graph(backbone), classifier_graph(classifier))
    add_names(model, classifier)
    add_known(model, classifier, "network.activations")
    data, session = start_session(model)
    drawn = compare(session, classifier, backbone, list(_drawn_images()))
    agreement = compare(session, classifier, backbone, photos) if photos else drawn
    worst = max(drawn.difference, agreement.difference)
    if not worst <= TOLERANCE:
        raise InvalidInputError(f"onnxruntime's probabilities differ by {worst:.3g} from this library's; not written")
    write_atomic(path, data)
    write_names(classifier, path)
    return agreement


def compare(session: Any, classifier: Classifier, backbone: Backbone, images: Sequence[Image.Image]) -> Agreement:
    same, worst = 0, 0.0
    for image in images:
        (probabilities,) = session.run(["probabilities"], {"image": np.asarray(image)})  # (1, n_categories)
        rows = next(iter(backbone.activations(backbone.transform(image)[None]).values()))
        expected = classifier.scores(rows).softmax(1).numpy()
        same += int(probabilities[0].argmax() == expected[0].argmax())
        worst = max(worst, float(np.abs(probabilities - expected).max()))
    return Agreement(len(images), same, worst)


class _Activations(nn.Module):
    """What `Backbone.activations` gives, as a module's output."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.network, self.layer, self.head = backbone.module, next(iter(backbone.layers)), backbone.head

    def forward(self, pixels: Tensor) -> Tensor:
        with capture(self.network, [self.layer], self.head) as captured:
            self.network(pixels)
        return captured[self.layer]


def _backbone_graph(backbone: Backbone) -> Any:
    """pixels (1, 3, crop, crop) -> activations (1, dim)."""
    import_onnx("onnxscript")
    crop = backbone.transform.crop
    module = _Activations(backbone).eval()
    with torch.no_grad(), _quietly():
        program = torch.onnx.export(
            module, (torch.zeros(1, 3, crop, crop),), dynamo=True, opset_version=OPSET, verbose=False,
            input_names=["pixels"], output_names=["activations"],
        )  # fmt: skip
    assert program is not None
    return program.model_proto


@contextmanager
def _quietly() -> Iterator[None]:
    """torch's exporter tells of packages that it lacks and of its own deprecations, which a user cannot change."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _join(image: Any, network: Any, classifier: Any) -> Any:
    from onnx.compose import merge_models

    for model in (image, network, classifier):
        model.ir_version = classifier.ir_version
        del model.metadata_props[:], model.functions[:]
    seen = merge_models(image, network, [("pixels", "pixels")], prefix1="image.", prefix2="network.")
    joined = merge_models(seen, classifier, [("network.activations", "activations")], producer_name="actstore")
    joined.ir_version = classifier.ir_version
    _rename(joined, "image.image", "image")
    return joined


def _rename(model: Any, old: str, new: str) -> None:
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
    for value in model.graph.input:
        value.name = new if value.name == old else value.name


def _drawn_images() -> Iterator[Image.Image]:
    """Soft shapes in colour, upright and not, larger and smaller than a network reads; the same every time."""
    random = np.random.default_rng(0)
    for width, height in SIDES:
        coarse = random.integers(0, 256, (7, 5, 3), dtype=np.uint8)
        yield Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


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
