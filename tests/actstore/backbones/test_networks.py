"""The networks of this package: shapes, parameters, activations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from actstore.backbones.architectures import NETWORKS
from actstore.backbones.construction import build_network
from actstore.backbones.weights import weights_sha256
from tests.actstore.backbones.examples import images, import_torchvision

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
    [
        ("resnet50", 2048, 64),
        ("resnet18", 512, 64),
        ("resnet10-narrow", 512, 64),
        ("resnet8", 512, 64),
        ("wrn28-10", 640, 32),
        ("simple", 64, 80),
        ("small", 256, 32),
    ],
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
