"""Backbones by name: layers, unknown names, a user's own networks, other libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from actstore.backbones.construction import build_network
from actstore.backbones.loading import load_backbone
from actstore.backbones.network import IMAGENET_MEAN, Transform
from actstore.backbones.weights import weights_sha256
from actstore.errors import InvalidInputError
from tests.actstore.backbones.examples import GREY, images

# --- layers -----------------------------------------------------------------------------------------------


@pytest.mark.numeric
def test_several_layers_in_one_pass() -> None:
    layers = ("layer2", "layer3.0.bn1", "activations", "avgpool", "fc", "layer2")
    backbone = load_backbone("resnet18", layers=layers, random_weights=True)
    assert backbone.layers == {"layer2": 128, "layer3.0.bn1": 256, "activations": 512, "avgpool": 512, "fc": 1000}
    result = backbone.activations(images(side=64))
    assert {name: tuple(rows.shape) for name, rows in result.items()} == {n: (2, d) for n, d in backbone.layers.items()}
    assert all(rows.dtype == torch.float32 and not rows.requires_grad for rows in result.values())
    network: Any = backbone.module
    with torch.no_grad():
        torch.testing.assert_close(result["activations"], network.features(images(side=64)))
        torch.testing.assert_close(result["avgpool"], result["activations"])
        torch.testing.assert_close(result["fc"], network(images(side=64)))
    assert (result["layer3.0.bn1"] < 0).any()  # the ReLU in place behind it came later


def test_no_hooks_stay_behind() -> None:
    backbone = load_backbone("small", layers=("layer1", "activations"), random_weights=True)
    backbone.activations(images())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in backbone.module.modules())


def test_an_unknown_layer_lists_close_ones() -> None:
    with pytest.raises(InvalidInputError, match=r"no layer 'layer9' in this backbone; close: layer\d"):
        load_backbone("resnet18", layers=("layer9",), random_weights=True)


# --- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet51", "no backbone 'resnet51'; known: .* did you mean resnet50"),
        ("xyz", "or torchvision:NAME, timm:NAME, package.module:factory"),
        (":make", "no backbone ':make'"),
        ("nowhere.at_all:make", "cannot import nowhere.at_all"),
        ("json:make", "json has no callable 'make'"),
        ("builtins:dict", "must return a torch.nn.Module, got dict"),
    ],
)
def test_unknown_names_are_one_clear_line(name: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        load_backbone(name)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_an_absent_library_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, f"{library}.models", None)
    with pytest.raises(InvalidInputError, match=f"needs {library}, which cannot be imported"):
        load_backbone(f"{library}:resnet50", random_weights=True)


class Tokens(nn.Module):
    """A toy transformer: (n, 3, h, w) -> (n, 4 tokens, 6) -> (n, 6) -> 9 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 6, 16, 16)
        self.mix = nn.Linear(6, 6)
        self.unused = nn.Identity()
        self.head = nn.Linear(6, 9)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.mix(self.patches(images).flatten(2).transpose(1, 2))  # (n, tokens, 6)
        logits: Tensor = self.head(tokens[:, 0])
        return logits


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A user's module in the current folder, which is not on the path."""
    (tmp_path / "own_network.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    module = ModuleType("own_network")
    monkeypatch.setitem(sys.modules, "own_network", module)

    def make() -> nn.Module:
        return Tokens()

    make.transform = GREY  # type: ignore[attr-defined]
    module.make, module.Tokens, module.built = make, Tokens, Tokens()  # type: ignore[attr-defined]
    module.maps = lambda: nn.Conv2d(3, 4, 3)  # type: ignore[attr-defined]
    module.small = lambda: build_network("small", 5)  # type: ignore[attr-defined]
    return module


@pytest.mark.numeric
def test_a_user_s_network_gives_its_output(own: ModuleType, tmp_path: Path) -> None:
    backbone = load_backbone("own_network:make", seed=2)
    assert backbone.layers == {"activations": 9}
    assert backbone.transform == GREY
    torch.testing.assert_close(backbone.activations(images())["activations"], backbone.module(images()).detach())
    torch.save(backbone.module.state_dict(), tmp_path / "w.pth")
    assert load_backbone("own_network:make", tmp_path / "w.pth", seed=5).weights_sha256 == backbone.weights_sha256


@pytest.mark.numeric
def test_tokens_are_averaged(own: ModuleType) -> None:
    backbone = load_backbone("own_network:make", layers=("mix",))
    assert backbone.layers == {"mix": 6}
    module: Any = backbone.module
    tokens = module.mix(module.patches(images()).flatten(2).transpose(1, 2)).detach()
    torch.testing.assert_close(backbone.activations(images())["mix"], tokens.mean(1))


@pytest.mark.parametrize(
    ("factory", "layers", "message"),
    [
        ("maps", (), r"must be \(n, dim\), got shape \(2, 4, 222, 222\); name a layer with --layer"),
        ("make", ("unused",), "takes no part in a forward pass"),
    ],
)
def test_a_user_s_network_of_no_use_says_why(own: ModuleType, factory: str, layers: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        load_backbone(f"own_network:{factory}", layers=layers)


def test_a_user_s_network_that_cannot_read_the_images_says_so(own: ModuleType) -> None:
    own.grey = lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())  # type: ignore[attr-defined]
    with pytest.raises(InvalidInputError, match=r"cannot read images of shape \(2, 3, 224, 224\)") as caught:
        load_backbone("own_network:grey")
    assert "\n" not in str(caught.value)


def test_built_modules_and_our_own_interface_work(own: ModuleType) -> None:
    assert load_backbone("own_network:built").module is own.built
    assert load_backbone("own_network:small").layers == {"activations": 256}
    own.make.transform = "resize"
    with pytest.raises(InvalidInputError, match="must be an actstore Transform, got str"):
        load_backbone("own_network:make")


def test_a_file_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net_of_test.py").write_text("from torch import nn\ndef make():\n    return nn.Flatten()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    assert load_backbone("net_of_test:make").layers == {"activations": 3 * 224 * 224}
    del sys.modules["net_of_test"]


def test_timm_s_networks_are_read_before_their_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"input_size": (3, 32, 32), "crop_pct": 0.9, "mean": IMAGENET_MEAN, "std": (1, 1, 1)}
    timm, data = ModuleType("timm"), ModuleType("timm.data")
    timm.create_model = lambda name, pretrained: Tokens()  # type: ignore[attr-defined]
    data.resolve_model_data_config = lambda _: {**config, "interpolation": "bicubic"}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    backbone = load_backbone("timm:toy", random_weights=True)
    assert backbone.layers == {"activations": 6}
    assert backbone.transform == Transform(35, 32, IMAGENET_MEAN, (1.0, 1.0, 1.0), "bicubic")
    with pytest.raises(InvalidInputError, match="timm:toy needs weights"):
        load_backbone("timm:toy")


def test_torchvision_s_published_weights_bring_their_transform(
    empty_hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = SimpleNamespace(value="bilinear")
    preset = SimpleNamespace(resize_size=[34], crop_size=[32], mean=[0, 0, 0], std=[1, 1, 1], interpolation=mode)
    entry = SimpleNamespace(url="https://x/toy-01234567.pth", transforms=lambda: preset)
    models = ModuleType("torchvision.models")
    models.get_model = lambda name, weights: Tokens()  # type: ignore[attr-defined]
    models.get_model_weights = lambda name: [entry]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    network = Tokens()
    network.head = nn.Linear(6, 4)  # another number of classes
    torch.save(network.state_dict(), empty_hub / "toy-01234567.pth")
    backbone = load_backbone("torchvision:toy")
    assert backbone.weights_sha256 == weights_sha256(network)
    assert backbone.transform == Transform(34, 32, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    assert backbone.layers == {"activations": 6}
