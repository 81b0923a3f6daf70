"""A classifier and its network in one ONNX graph: an image in, names and probabilities out."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from actstore.backbones.loading import Backbone, capture
from actstore.errors import InvalidInputError
from actstore.storage.atomic_file import write_atomic
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_graph import OPSET, add_known, add_names, classifier_graph
from predictor.classifier.export import import_onnx, names_file, start_session, write_names
from predictor.classifier.image_graph import image_graph

SIDES = ((80, 80), (300, 451), (613, 402), (260, 224))  # (width, height) of the images that a graph is checked with
TOLERANCE = 0.02  # of a probability: resizing is rounded a little otherwise than Pillow does it


@dataclass(frozen=True)
class Agreement:
    """Of a graph in onnxruntime with this library: images, of them with the same first category, and how far the
    probability of any category of any image was off."""

    images: int
    same: int
    difference: float


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
