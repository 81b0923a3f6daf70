"""A graph that reads an image gives what the network and the classifier give, for images of every shape."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from actstore.backbones.loading import Backbone, load_backbone
from actstore.backbones.network import Transform
from actstore.errors import InvalidInputError
from predictor.classifier import export
from predictor.classifier.classifier import Classifier
from predictor.classifier.export import Agreement, export_with_backbone
from predictor.classifier.onnx_graph import make_model, pixel_nodes
from predictor.classifier.presentation import set_displays
from predictor.classifier.unknown import PHOTOS, Unknown
from predictor.phi.network import Phi
from predictor.protocol.head import Head

pytestmark = pytest.mark.numeric


def image_graph(transform: Transform) -> Any:
    nodes, constants = pixel_nodes(transform)
    outputs = f"float[1, 3, {transform.crop}, {transform.crop}] network_pixels"
    return make_model([nodes], "uint8[height, width, 3] image", outputs, constants)


def soft_image(width: int, height: int, seed: int) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("resize", "crop"), [(36, 32), (40, 33), (32, 32)])
def test_the_graph_resizes_and_crops_as_pillow_does(resize: int, crop: int, interpolation: str) -> None:
    """Within a rounded step of 255 nearly everywhere, whichever side is shorter, larger or smaller than before."""
    transform = Transform(resize, crop, interpolation=interpolation)
    model = image_graph(transform)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    deviation = np.array(transform.std)[:, None, None] * 255

    @settings(max_examples=25, deadline=None)
    @given(st.integers(8, 200), st.integers(8, 200), st.integers(0, 99))
    def check(width: int, height: int, seed: int) -> None:
        image = soft_image(width, height, seed)
        (found,) = session.run(None, {"image": np.asarray(image)})
        difference = np.abs(found[0] - transform(image).numpy()) * deviation  # in steps of 255
        assert found.shape == (1, 3, crop, crop)
        assert difference.max() < 2.1
        assert difference.mean() < 0.2

    check()


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone("small", random_weights=True)


@pytest.fixture
def classifier(make_phi: Callable[..., Phi], backbone: Backbone) -> Classifier:
    (dim,) = backbone.layers.values()
    random = torch.Generator().manual_seed(0)
    images = torch.stack([backbone.transform(soft_image(50, 50, seed)) for seed in range(9)])
    (rows,) = backbone.activations(images).values()
    found = Classifier.from_means(make_phi(dim=dim, query_norm=True), [f"base {n}" for n in range(4)], rows[:4])
    found.adapt("été", rows[4:7])
    found.adapt("one", rows[7] + 0.01 * torch.rand(dim, generator=random))
    return found


def test_names_and_probabilities_of_images(classifier: Classifier, backbone: Backbone, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    set_displays(classifier, {"one": "the only one"})
    photos = [soft_image(*size) for size in ((31, 77, 0), (300, 64, 5), (64, 64, 7))]
    agreement = export_with_backbone(classifier, backbone, file, photos)
    assert (agreement.images, agreement.same) == (3, 3)
    assert agreement.difference < 0.02
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (rows,) = backbone.activations(torch.stack([backbone.transform(photo) for photo in photos])).values()
    for photo, line in zip(photos, classifier.predict(rows), strict=True):
        names, shares, places, all_shares = session.run(
            ["names", "top_probabilities", "places", "probabilities"], {"image": np.asarray(photo)}
        )
        assert names.shape == shares.shape == places.shape == (1, 5)
        shown = {"one": "the only one"}
        assert names[0][0] == shown.get(line[0][0], line[0][0])
        np.testing.assert_allclose(shares[0], [share for _, share in line], atol=0.02)
        own = [classifier.categories[place] for place in places[0]]
        assert [shown.get(name, name) for name in own] == names[0].tolist()
        np.testing.assert_array_equal(all_shares[0][places[0]], shares[0])
    known = json.loads(session.get_modelmeta().custom_metadata_map["categories"])
    assert known == list(classifier.categories) == json.loads((tmp_path / "model.json").read_text())["categories"]
    assert json.loads((tmp_path / "model.json").read_text())["display"] == {"one": "the only one"}
    onnx.checker.check_model(onnx.load(file), full_check=True)


def test_a_graph_that_disagrees_is_not_written(
    classifier: Classifier, backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "network_graph", lambda _: onnx.ModelProto())
    monkeypatch.setattr(export, "whole_graph", lambda *_: image_graph(backbone.transform))
    monkeypatch.setattr(export, "compare", lambda *_: Agreement(4, 0, 0.3))
    with pytest.raises(InvalidInputError, match=r"probabilities differ by 0\.3 from this library's; not written"):
        export_with_backbone(classifier, backbone, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["onnx", "onnxruntime", "onnxscript"])
def test_without_a_package_it_says_what_to_install(
    classifier: Classifier, backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidInputError, match=rf"ONNX export needs {module}: pip install 'actstore\[onnx\]'"):
        export_with_backbone(classifier, backbone, tmp_path / "model.onnx")


def test_drawn_images_are_the_same_every_time() -> None:
    first, second = ([np.asarray(image) for image in export._drawn_images()] for _ in range(2))
    assert len(first) == len(export.SIDES)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    sizes: list[Any] = [(image.shape[1], image.shape[0]) for image in first]
    assert sizes == list(export.SIDES)


@pytest.mark.parametrize("kind", ["own", "beside"])
def test_known_and_unknown(backbone: Backbone, tmp_path: Path, kind: str) -> None:
    """Photos like the examples are known, noise is not: in the graph as in the classifier."""
    (dim,) = backbone.layers.values()
    images = torch.stack([backbone.transform(soft_image(50, 50, seed)) for seed in range(6)])
    (rows,) = backbone.activations(images).values()
    if kind == "own":
        learner = Classifier.alone(dim)
    else:
        head = Head(torch.rand(4, dim, generator=torch.Generator().manual_seed(1)), torch.zeros(4))
        unknown = Unknown(PHOTOS, base_threshold=0.3)
        learner = Classifier.from_head(head, [f"k{place}" for place in range(4)], unknown=unknown)
    learner.adapt("a", rows[:3])
    learner.adapt("b", rows[3:])
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    photos = [soft_image(50, 50, 0), soft_image(90, 50, 9), noise, Image.new("RGB", (40, 40))]
    (queries,) = backbone.activations(torch.stack([backbone.transform(photo) for photo in photos])).values()
    learner.set_unknown(learner.unknown.set_at(float(learner.familiarity(queries).sort().values[1:3].mean())))
    export_with_backbone(learner, backbone, tmp_path / "m.onnx", photos)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    found = [session.run(["known", "familiarity"], {"image": np.asarray(photo)}) for photo in photos]
    np.testing.assert_allclose([one[1][0] for one in found], learner.familiarity(queries).numpy(), atol=0.01)
    expected = learner.is_known(queries).tolist()
    assert [bool(one[0][0]) for one in found] == expected
    assert sorted(expected) == [False, False, True, True]


def test_networks_side_by_side_are_refused(tmp_path: Path) -> None:
    name = "efficientnet-lite0+efficientnet-lite1"
    joined = load_backbone(name, random_weights=True)
    with pytest.raises(InvalidInputError, match=name.replace("+", r"\+")):
        export_with_backbone(Classifier.alone(joined.layers["activations"]), joined, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()
