"""Networks of timm and torchvision with the weights these fetch; both libraries are stood in for."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import actstore
from actstore.backbones.loading import load_backbone
from actstore.backbones.network import Transform, imagenet_wnids
from actstore.errors import InvalidInputError
from actstore.extraction.build import BuildOptions, build
from actstore.extraction.forward import load_recorded, network_of
from actstore.images.opening import open_images

CONFIG = {"input_size": (3, 32, 32), "crop_pct": 1.0, "mean": (0, 0, 0), "std": (1, 1, 1), "interpolation": "bicubic"}


class Vision(nn.Module):
    """A toy transformer whose activations have both signs; without classes it has no classifier, as DINO has none."""

    def __init__(self, classes: int, tag: str, seed: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 6, 16, 16)
        self.mlp = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, classes) if classes else nn.Identity()
        self.pretrained_cfg = {"tag": tag, "architecture": "toy", "hf_hub_id": f"timm/toy.{tag}", "url": ""}
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for parameter in self.parameters():
                nn.init.normal_(parameter)

    def get_classifier(self) -> nn.Module:
        return self.head

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.mlp(self.patches(images).flatten(2).transpose(1, 2))  # (n, tokens, 6)
        output: Tensor = self.head(self.norm(tokens.mean(1)))
        return output


@pytest.fixture(autouse=True)
def empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> Any:
    library, data = ModuleType("timm"), ModuleType("timm.data")

    def create_model(name: str, pretrained: bool) -> nn.Module:
        if not name.startswith("toy"):
            raise RuntimeError(f"Unknown model ({name})")
        tag = name.partition(".")[2] or "augreg_in1k"
        return Vision(0 if tag == "dino" else 1000, tag, seed=9 if pretrained else 1)

    library.create_model = create_model  # type: ignore[attr-defined]
    data.resolve_model_data_config = lambda _: CONFIG  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", library)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    return library


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torchvision's two sets of weights for its model `toy`."""
    preset = SimpleNamespace(resize_size=[34], crop_size=[32], mean=[0, 0, 0], std=[1, 1, 1],
                             interpolation=SimpleNamespace(value="bilinear"))  # fmt: skip

    def entry(name: str, seed: int) -> Any:
        state = Vision(1000, "", seed).state_dict()
        return SimpleNamespace(name=name, url=f"https://x/toy-{seed}.pth", transforms=lambda: preset,
                               get_state_dict=lambda progress, check_hash: state)  # fmt: skip

    class Entries(list[Any]):
        @property
        def DEFAULT(self) -> Any:
            return self[-1]

    found = Entries([entry("IMAGENET1K_V1", 5), entry("IMAGENET1K_V2", 6)])
    models = ModuleType("torchvision.models")
    models.get_model = lambda name, weights: Vision(1000, "", 1)  # type: ignore[attr-defined]
    models.get_model_weights = lambda name: found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    return found


def test_timm_fetches_weights_and_the_name_says_which(timm: Any) -> None:
    backbone = load_backbone("timm:toy", pretrained=True)
    assert backbone.name == "timm:toy.augreg_in1k"
    assert backbone.pretrained
    assert backbone.trained_classes == imagenet_wnids()
    assert backbone.weights_sha256 == load_backbone("timm:toy.augreg_in1k", pretrained=True).weights_sha256
    assert backbone.weights_sha256 != load_backbone("timm:toy", random_weights=True).weights_sha256
    assert backbone.transform == Transform(32, 32, (0.0,) * 3, (1.0,) * 3, "bicubic")


def test_a_network_without_classifier_gives_its_output(timm: Any) -> None:
    backbone = load_backbone("timm:toy.dino", pretrained=True)
    pixels = torch.rand(3, 3, 32, 32)
    activations = backbone.activations(pixels)["activations"]
    torch.testing.assert_close(activations, backbone.module(pixels).detach())
    assert (activations < 0).any()
    assert backbone.head is None
    assert backbone.trained_classes is None


@pytest.mark.parametrize(
    ("given", "tag", "seed"), [("toy", "IMAGENET1K_V2", 6), ("toy.IMAGENET1K_V1", "IMAGENET1K_V1", 5)]
)
def test_torchvision_fetches_its_newest_weights_or_those_named(entries: Any, given: str, tag: str, seed: int) -> None:
    backbone = load_backbone(f"torchvision:{given}", pretrained=True)
    assert backbone.name == f"torchvision:toy.{tag}"
    assert backbone.trained_classes == imagenet_wnids()
    assert backbone.transform == Transform(34, 32, (0.0,) * 3, (1.0,) * 3)
    expected = Vision(1000, "", seed).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in backbone.module.state_dict().items())


def test_a_tag_that_torchvision_does_not_have_lists_those_it_has(entries: Any) -> None:
    with pytest.raises(InvalidInputError, match="no weights 'V9' for toy; it has IMAGENET1K_V1, IMAGENET1K_V2"):
        load_backbone("torchvision:toy.V9", pretrained=True)


def no_internet(*_: Any, **__: Any) -> Any:
    raise ConnectionError("Max retries exceeded\nwith url: https://…")


def test_without_internet_one_line_says_how_to_bring_a_file(
    timm: Any, entries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda name, pretrained: (no_internet if pretrained else create)(name, False)
    )
    entries[-1].get_state_dict = no_internet
    for name, url in (("timm:toy", "huggingface.co/timm/toy.augreg_in1k"), ("torchvision:toy", "https://x/toy-6.pth")):
        with pytest.raises(
            InvalidInputError, match=rf"could not be fetched \(Max.*{url} and pass .*--weights"
        ) as caught:
            load_backbone(name, pretrained=True)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("timm:toy", {"weights": Path("w.pth")}, "the weights file w.pth and --pretrained exclude each other"),
        ("timm:toy", {"random_weights": True}, "random weights and --pretrained exclude each other"),
        ("timm:nothing", {}, "timm has no model 'nothing'"),
        ("json:loads", {}, "--pretrained is for .*timm:NAME, got json:loads"),
    ],
)
def test_what_pretrained_does_not_go_with(timm: Any, name: str, options: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        load_backbone(name, pretrained=True, **options)


def test_without_any_weights_pretrained_is_offered(timm: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"--weights FILE .* or --pretrained where there is internet"):
        load_backbone("timm:toy")


def test_a_store_of_a_pretrained_network_finds_it_again(timm: Any, tmp_path: Path) -> None:
    backbone = load_backbone("timm:toy.dino", pretrained=True)
    source = "glyphs:2x3x0"
    options = BuildOptions(device="cpu", workers=0)
    for _ in range(2):  # the second time it is found finished
        build(open_images(source), source, tmp_path / "x.zarr", backbone, options)
    split = actstore.open(tmp_path / "x.zarr")["train"]
    assert (split[:] < 0).any()
    assert split.spec.provenance["backbone"] == "timm:toy.dino"
    record = network_of(split)
    assert record["pretrained"] is True
    again = load_recorded(record)
    assert again.weights_sha256 == record["weights_sha256"] == backbone.weights_sha256
