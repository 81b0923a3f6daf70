"""A classifier without this library: a plain linear layer with a row-to-category map, or an ONNX graph, of activations
or, with the network in it, of images."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from actstore.backbones.loading import Backbone, capture
from actstore.errors import InvalidInputError
from actstore.storage.atomic_file import as_utf8, write_atomic
from predictor.classifier.classifier import Classifier
from predictor.classifier.onnx_graph import OPSET, classifier_graph, import_onnx, whole_graph
from predictor.classifier.photos import list_images, network_of
from predictor.classifier.presentation import KEY, displays

if TYPE_CHECKING:
    from predictor.classifier.classifier import FilePath

CHECKED_ROWS = 256
SIDES = ((80, 80), (300, 451), (613, 402), (260, 224))  # (width, height) of the images that a graph is checked with
MAX_CHECKED = 100  # photos that a graph is compared on
TOLERANCE = 0.02  # of a probability: resizing is rounded a little otherwise than Pillow does it


@dataclass(frozen=True)
class Agreement:
    """How far a graph in onnxruntime agrees with this library.

    Attributes:
        images: how many were compared.
        same: how many of them have the same first category.
        difference: how far the probability of any category of any image was off.
    """

    images: int
    same: int
    difference: float

    def to_json(self) -> dict[str, Any]:
        return {"checked_images": self.images, "same_first": self.same, "probability_difference": self.difference}


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


def start_session(model: Any) -> tuple[bytes, Any]:
    """The graph as it is written, and onnxruntime with it."""
    onnx, onnxruntime = import_onnx("onnx", "onnxruntime")
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data, onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


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
    """Write `whole_graph`, checked with onnxruntime.

    photos: what it is checked with beside drawn images, in mode RGB; the agreement is of these where there are any.
    """
    if (views := classifier.about.get("network", {}).get("views") or 1) != 1:
        raise InvalidInputError(
            f"the classifier averages {views} views of an image, a graph reads one; learn it again from a store "
            "that was built with --views 1"
        )
    if backbone.transform.channels != 3:
        raise InvalidInputError(
            f"a graph holds one network, not {backbone.name}; leave out with_backbone (--with-backbone)"
        )
    import_onnx("onnx", "onnxruntime")
    names_file(path)  # refused before the work, where it is the export itself
    data, session = start_session(whole_graph(classifier, backbone.transform, network_graph(backbone)))
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


def network_graph(backbone: Backbone) -> Any:
    """pixels (1, 3, crop, crop) -> activations (1, dim)."""
    import_onnx("onnxscript")
    logger, crop = logging.getLogger("torch.onnx"), backbone.transform.crop
    level = logger.level
    logger.setLevel(logging.ERROR)  # of packages that the exporter lacks, which a user cannot change
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            program = torch.onnx.export(
                _Activations(backbone).eval(), (torch.zeros(1, 3, crop, crop),), dynamo=True, opset_version=OPSET,
                verbose=False, input_names=["pixels"], output_names=["activations"],
            )  # fmt: skip
    finally:
        logger.setLevel(level)
    assert program is not None
    return program.model_proto


def _drawn_images() -> Iterator[Image.Image]:
    """Soft shapes in colour, upright and not, larger and smaller than a network reads; the same every time."""
    random = np.random.default_rng(0)
    for width, height in SIDES:
        coarse = random.integers(0, 256, (7, 5, 3), dtype=np.uint8)
        yield Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


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
