from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from actstore.backbones.construction import NETWORKS, build_network
from actstore.backbones.loading import load_backbone
from actstore.backbones.transform import IMAGENET_MEAN, IMAGENET_STD, Transform
from actstore.backbones.weights import save_weights, weights_sha256
from actstore.errors import ActstoreError, InvalidInputError

GREY = Transform(resize=40, crop=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def import_torchvision() -> Any:
    """torchvision may be absent, or installed and broken beside another torch."""
    try:
        import torchvision.transforms
    except Exception as error:  # noqa: BLE001 - whatever it is, there is nothing to compare with
        pytest.skip(f"torchvision does not import: {error}")
    return torchvision


@pytest.fixture(autouse=True)
def empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """torch's cache of downloads: an empty one."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    folder = tmp_path / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def small() -> nn.Module:
    return build_network("small", num_classes=7, seed=3)


def images(n: int = 2, side: int = 32) -> Tensor:
    return torch.rand((n, 3, side, side), generator=torch.Generator().manual_seed(1))


# --- networks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters", "total", "entries"),
    [("resnet50", 161, 25_557_032, 320), ("resnet18", 62, 11_689_512, 122)],
)
def test_resnets_have_torchvision_s_parameters(name: str, parameters: int, total: int, entries: int) -> None:
    network = build_network(name, num_classes=1000)
    assert len(list(network.parameters())) == parameters
    assert sum(parameter.numel() for parameter in network.parameters()) == total
    assert len(network.state_dict()) == entries


def test_resnet50_has_torchvision_s_names_and_shapes() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in build_network("resnet50", 1000).state_dict().items()}
    known = {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.running_var": (64,),
        "bn1.num_batches_tracked": (),
        "layer1.0.conv1.weight": (64, 64, 1, 1),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer1.0.downsample.1.running_mean": (256,),
        "layer1.2.bn3.bias": (256,),
        "layer2.0.conv2.weight": (128, 128, 3, 3),
        "layer3.5.conv3.weight": (1024, 256, 1, 1),
        "layer4.0.downsample.0.weight": (2048, 1024, 1, 1),
        "layer4.2.conv1.weight": (512, 2048, 1, 1),
        "fc.weight": (1000, 2048),
        "fc.bias": (1000,),
    }
    assert known.items() <= shapes.items()
    assert "layer1.1.downsample.0.weight" not in shapes
    assert not any(name.startswith(("layer1.3", "layer2.4", "layer3.6", "layer4.3")) for name in shapes)


def test_the_bottleneck_strides_in_its_3x3_convolution() -> None:
    block = build_network("resnet50", 10).get_submodule("layer2.0")
    assert block.get_submodule("conv1").stride == (1, 1)
    assert block.get_submodule("conv2").stride == (2, 2)


def test_resnet18_projects_only_where_the_shape_changes() -> None:
    names = {name.rsplit(".", 2)[0] for name in build_network("resnet18", 10).state_dict() if "downsample" in name}
    assert names == {f"layer{stage}.0.downsample" for stage in (2, 3, 4)}


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("name", "dim", "side"),
    [("resnet50", 2048, 64), ("resnet18", 512, 64), ("wrn28-10", 640, 32), ("simple", 64, 80), ("small", 256, 32)],
)
def test_networks_give_activations_and_logits(name: str, dim: int, side: int) -> None:
    network = build_network(name, num_classes=5).eval()
    with torch.no_grad():
        activations = network.features(images(side=side))
        logits = network(images(side=side))
    assert network.dim == dim
    assert activations.shape == (2, dim)
    assert (activations >= 0).all()
    torch.testing.assert_close(logits, network.fc(activations))
    assert logits.shape == (2, 5)


@pytest.mark.parametrize(("name", "side"), [("simple", 28), ("simple", 32), ("small", 48), ("small", 64)])
def test_glyph_sizes_work_too(name: str, side: int) -> None:
    assert build_network(name, 5).eval().features(images(side=side)).shape == (2, NETWORKS[name](5).dim)


def test_simple_and_wrn_end_in_10x10_maps_at_80_pixels() -> None:
    sizes = []
    for name, layer in (("simple", "layer4"), ("wrn28-10", "layer3")):
        network = build_network(name, 5).eval()
        network.get_submodule(layer).register_forward_hook(lambda _, __, output: sizes.append(output.shape[1:]))
        with torch.no_grad():
            network(images(1, 80))
    assert sizes == [(64, 10, 10), (640, 10, 10)]


def test_wrn_has_a_wide_stem_and_three_stages_of_four_blocks() -> None:
    network = build_network("wrn28-10", 80)
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) == 1 + 3 * 4 * 2
    assert network.get_parameter("conv1.weight").shape == (80, 3, 3, 3)


@pytest.mark.numeric
def test_small_reads_grey_images(small: Any) -> None:
    small.eval()
    grey = images()[:, :1]
    torch.testing.assert_close(small.features(grey), small.features(grey.repeat(1, 3, 1, 1)))


def test_small_is_cheap(small: nn.Module) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        small.eval()(images(1))
    assert counter.get_total_flops() < 25e6


def test_the_seed_decides_the_weights_and_the_global_generator_stays() -> None:
    before = torch.get_rng_state()
    hashes = [weights_sha256(build_network("small", 5, seed)) for seed in (0, 0, 1)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.numeric
@pytest.mark.parametrize("name", ["resnet50", "resnet18"])
def test_resnets_equal_torchvision_s(name: str) -> None:
    torchvision = import_torchvision()
    ours = build_network(name, 1000).double().eval()
    theirs = torchvision.models.get_model(name, weights=None).double().eval()
    theirs.load_state_dict(ours.state_dict(), strict=True)
    with torch.no_grad():
        torch.testing.assert_close(ours(images(side=96).double()), theirs(images(side=96).double()))


# --- transform --------------------------------------------------------------------------------------------


def photograph(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng([width, height]).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


SIZES = [(500, 375), (375, 500), (40, 40), (41, 97), (40, 301), (33, 20), (1, 3), (256, 255)]


@pytest.mark.parametrize("size", SIZES)
def test_transform_equals_a_plain_reference(size: tuple[int, int]) -> None:
    transform = Transform(resize=40, crop=31)
    width, height = size
    new = (40, int(40 * height / width)) if width <= height else (int(40 * width / height), 40)
    pixels = np.asarray(photograph(*size).resize(new, Image.Resampling.BILINEAR), np.float32)  # (h, w, 3)
    top, left = int(round((new[1] - 31) / 2.0)), int(round((new[0] - 31) / 2.0))  # noqa: RUF046 - as the contract says
    cropped = pixels[top : top + 31, left : left + 31] / np.float32(255)
    expected = (cropped - np.float32(IMAGENET_MEAN)) / np.float32(IMAGENET_STD)
    result = transform(photograph(*size))
    assert result.shape == (3, 31, 31)
    assert result.dtype == torch.float32
    assert result.is_contiguous()
    np.testing.assert_allclose(result.numpy(), expected.transpose(2, 0, 1), atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_transform_equals_torchvision_s(size: tuple[int, int]) -> None:
    t = import_torchvision().transforms
    theirs = t.Compose([t.Resize(40), t.CenterCrop(31), t.ToTensor(), t.Normalize(IMAGENET_MEAN, IMAGENET_STD)])
    assert torch.equal(Transform(resize=40, crop=31)(photograph(*size)), theirs(photograph(*size)))


def test_transform_survives_json_and_pickle() -> None:
    text = json.dumps(GREY.to_json())
    assert Transform.from_json(json.loads(text)) == GREY
    assert pickle.loads(pickle.dumps(GREY)) == GREY
    assert hash(GREY) == hash(Transform.from_json(json.loads(text)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resize": 0}, "resize must be a positive integer, got 0"),
        ({"crop": 50}, "crop must not exceed resize 40, got 50"),
        ({"mean": (0.5,)}, "mean must be three finite numbers"),
        ({"mean": None}, "mean must be three finite numbers"),
        ({"std": (1, 1, 0)}, "std must be positive"),
        ({"interpolation": "nearest"}, "interpolation must be 'bilinear' or 'bicubic', got 'nearest'"),
        ({"side": 3}, "expected a transform with resize, crop, mean and std"),
    ],
)
def test_bad_transforms_say_what_is_wrong(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Transform.from_json({**GREY.to_json(), **change})


def test_transform_refuses_other_modes() -> None:
    with pytest.raises(InvalidInputError, match=r"got mode 'L'; use image\.convert"):
        GREY(Image.new("L", (50, 50)))


# --- weights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: {"state_dict": d, "epoch": 3}, lambda d: {"model": d}])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_pth_files_load_as_training_scripts_write_them(tmp_path: Path, small: Any, wrap: Any, prefix: str) -> None:
    torch.save(wrap({prefix + name: tensor for name, tensor in small.state_dict().items()}), tmp_path / "w.pth")
    backbone = load_backbone("small", tmp_path / "w.pth")
    assert backbone.weights_sha256 == weights_sha256(small)
    assert backbone.layers == {"activations": 256}
    assert not backbone.module.training
    small.eval()
    torch.testing.assert_close(backbone.activations(images())["activations"], small.features(images()))
    torch.testing.assert_close(backbone.module(images()), small(images()))  # fc of 7 classes came along


def test_safetensors_carry_classes_and_transform(tmp_path: Path, small: nn.Module) -> None:
    classes = (*"abcdef", "é\n")
    save_weights(tmp_path / "w.safetensors", small, "small", classes, GREY)
    backbone = load_backbone("small", tmp_path / "w.safetensors")
    assert backbone.trained_classes == classes
    assert backbone.transform == GREY
    assert backbone.weights_sha256 == weights_sha256(small)


def test_plain_safetensors_load_too(tmp_path: Path, small: nn.Module) -> None:
    save_file(small.state_dict(), tmp_path / "w.safetensors", {"backbone": "small"})
    backbone = load_backbone("small", tmp_path / "w.safetensors")
    assert backbone.trained_classes is None
    assert backbone.transform == NETWORKS["small"](1).transform


def test_old_files_without_batch_counts_load(tmp_path: Path, small: nn.Module) -> None:
    state = {name: tensor for name, tensor in small.state_dict().items() if "num_batches" not in name}
    torch.save(state, tmp_path / "w.pt")
    assert load_backbone("small", tmp_path / "w.pt").weights_sha256 == weights_sha256(small)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"backbone": '"resnet50"'}, "it holds weights of resnet50; pass --backbone resnet50"),
        ({"classes": '["a"]'}, "names 1 classes, but its classifier has 7"),
        ({"classes": "a, b"}, "metadata 'classes' of .* must be a JSON list, got 'a, b'"),
        ({"transform": '{"resize": 3}'}, "expected a transform"),
    ],
)
def test_wrong_metadata_is_refused(tmp_path: Path, small: nn.Module, metadata: Any, message: str) -> None:
    save_file(small.state_dict(), tmp_path / "w.safetensors", metadata)
    with pytest.raises(InvalidInputError, match=message):
        load_backbone("small", tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("bn1.bias", torch.zeros(5), r"bn1.bias has shape \(5,\), expected \(32,\)"),
        ("bn1.bias", None, r"bn1.bias is missing, expected shape \(32,\)"),
        ("fc.weight", torch.zeros(7, 5), r"fc.weight has shape \(7, 5\), expected \(1000, 256\)"),
        ("fc.bias", torch.zeros(8), r"fc.bias has shape \(8,\), expected \(7,\)"),
        ("extra.weight", torch.zeros(2, 3), r"extra.weight of shape \(2, 3\) is not part of small"),
        ("note", "hello", "must hold tensors only, got str under 'note'"),
    ],
)
def test_weights_that_do_not_fit_name_the_key(
    tmp_path: Path, small: nn.Module, key: str, value: Any, message: str
) -> None:
    state = {**small.state_dict(), key: value}
    torch.save({name: tensor for name, tensor in state.items() if tensor is not None}, tmp_path / "w.pth")
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_backbone("small", tmp_path / "w.pth")
    assert "\n" not in str(caught.value)


def test_another_network_s_weights_are_refused(tmp_path: Path) -> None:
    torch.save(build_network("resnet18", 10).state_dict(), tmp_path / "w.pth")
    expected = r"layer1.0.conv1.weight has shape \(64, 64, 3, 3\), expected \(64, 64, 1, 1\)"
    with pytest.raises(InvalidInputError, match=expected):
        load_backbone("resnet50", tmp_path / "w.pth")


class Malicious:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def write_pickle(value: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(value, protocol=4))


@pytest.mark.parametrize(
    ("write", "found"), [(torch.save, r"the object '\w+\.mkdir'"), (write_pickle, "something else, or is damaged")]
)
def test_a_malicious_pickle_does_not_run(tmp_path: Path, write: Any, found: str) -> None:
    write({"conv1.weight": Malicious(tmp_path / "ran")}, tmp_path / "w.pth")
    with pytest.raises(InvalidInputError, match=f"must hold tensors only, but holds {found}") as caught:
        load_backbone("small", tmp_path / "w.pth")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"hello, I am no weights", b"\x80\x02}q\x00.", bytes(range(256)) * 9])
def test_damaged_files_are_one_clear_line(tmp_path: Path, suffix: str, content: bytes) -> None:
    (tmp_path / f"w{suffix}").write_bytes(content)
    with pytest.raises(ActstoreError, match=f"w{suffix}") as caught:
        load_backbone("small", tmp_path / f"w{suffix}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_truncated_files_are_refused(tmp_path: Path, small: nn.Module, suffix: str) -> None:
    path = tmp_path / f"w{suffix}"
    (torch.save if suffix == ".pth" else save_file)(small.state_dict(), path)
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(ActstoreError, match="damaged"):
        load_backbone("small", path)


@pytest.mark.parametrize("name", ["absent.pth", "w.ckpt", "folder.pth"])
def test_files_of_no_use_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "w.ckpt").touch()
    (tmp_path / "folder.pth").mkdir()
    with pytest.raises(InvalidInputError, match=name):
        load_backbone("small", tmp_path / name)


def test_without_weights_the_error_says_what_to_pass(empty_hub: Path) -> None:
    with pytest.raises(
        InvalidInputError, match=r"pass --weights FILE .*resnet50-11ad3fa6.pth.*`ppa pretrain`"
    ) as caught:
        load_backbone("resnet50")
    assert str(empty_hub) in str(caught.value)
    with pytest.raises(InvalidInputError, match="small needs weights: pass --weights FILE"):
        load_backbone("small")


def test_published_weights_are_found_in_the_cache(empty_hub: Path) -> None:
    network = build_network("resnet18", 1000, seed=4)
    torch.save(network.state_dict(), empty_hub / "resnet18-f37072fd.pth")
    assert load_backbone("resnet18").weights_sha256 == weights_sha256(network)


def test_random_weights_follow_the_seed(tmp_path: Path) -> None:
    hashes = [load_backbone("small", seed=seed, random_weights=True).weights_sha256 for seed in (0, 0, 1)]
    assert hashes[0] == hashes[1] != hashes[2]
    with pytest.raises(InvalidInputError, match="exclude each other"):
        load_backbone("small", tmp_path / "w.pth", random_weights=True)


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
