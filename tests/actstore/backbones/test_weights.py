"""Weight files: what is read, and what is refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from actstore.backbones.architectures import NETWORKS
from actstore.backbones.construction import build_network
from actstore.backbones.loading import load_backbone
from actstore.backbones.weights import save_weights, weights_sha256
from actstore.errors import ActstoreError, InvalidInputError
from tests.actstore.backbones.examples import GREY, images

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
