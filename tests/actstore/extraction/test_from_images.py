"""`actstore.build`: one call, a network chosen where none is named, and the same call resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import actstore
from actstore.backbones import Transform
from actstore.backbones.loading import load_backbone
from actstore.errors import InvalidInputError
from actstore.extraction import from_images
from actstore.extraction.from_images import load_network
from actstore.images.opening import SplitImages

GLYPHS = "glyphs:3x4x2"
TINY: dict[str, Any] = {"backbone": "small", "random_weights": True, "workers": 0, "device": "cpu"}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_images_become_a_store_named_like_them() -> None:
    store = actstore.build(GLYPHS, **TINY)
    assert str(store.path) == "glyphs.zarr"
    assert {name: len(split) for name, split in store.items()} == {"train": 12, "val": 6}
    assert len(store.classes) == 3


def test_the_same_call_resumes_and_a_finished_store_is_opened(capsys: pytest.CaptureFixture[str]) -> None:
    made = actstore.build(GLYPHS, "x.zarr", **TINY, chunk_rows=4)
    again = actstore.build(GLYPHS, "x.zarr", **TINY, progress=False)
    assert again["train"].content == made["train"].content
    assert capsys.readouterr() == ("", "")  # neither has a terminal


def test_views_layers_and_layout_are_taken() -> None:
    network = load_backbone("small", layers=("layer2", "layer3"), random_weights=True)
    store = actstore.build(GLYPHS, "x.zarr", backbone=network, views=2, workers=0, device="cpu", dtype="f4")
    assert set(store) == {"train", "train.layer3", "val", "val.layer3"}
    assert (store.spec.dtype, store.spec.provenance["views"]) == ("f4", 2)


def test_a_module_and_a_transform_are_a_network() -> None:
    module = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    store = actstore.build(GLYPHS, "x.zarr", backbone=module, transform=Transform(16, 16), workers=0, device="cpu")
    assert (store.dim, store.spec.provenance["transform"]["crop"]) == (12, 16)
    again = actstore.build(GLYPHS, "x.zarr", backbone=module, transform=Transform(16, 16), workers=0, device="cpu")
    assert again["val"].content == store["val"].content
    with pytest.raises(InvalidInputError, match="finished split"):
        actstore.build(GLYPHS, "x.zarr", backbone=module, transform=Transform(24, 16), workers=0, device="cpu")


def test_without_a_name_a_network_is_chosen_and_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def choose(offline: bool, progress: Any) -> Any:
        asked.append(offline)
        return from_images.Choice("efficientnet-lite0", Path("weights.pth"), "it is the only one here")

    real = load_backbone
    monkeypatch.setattr(from_images, "default_backbone", choose)
    monkeypatch.setattr(from_images, "load_backbone", lambda name, *_, **__: real("small", random_weights=True))
    store = actstore.build(GLYPHS, "x.zarr", offline=True, workers=0, device="cpu", progress=True)
    assert asked == [True]
    assert store.spec.provenance["network_chosen"] == "it is the only one here"
    assert "efficientnet-lite0, as it is the only one here" in capsys.readouterr().err
    actstore.build(GLYPHS, "x.zarr", workers=0, device="cpu")
    assert asked == [True]  # the store names its network


def test_weights_written_beside_give_the_same_rows() -> None:
    from safetensors.torch import save_file

    network = load_backbone("small", random_weights=True)
    save_file(network.module.state_dict(), "w.safetensors")
    drawn = actstore.build(GLYPHS, "drawn.zarr", **TINY)
    read = actstore.build(GLYPHS, "read.zarr", backbone="small", weights="w.safetensors", workers=0, device="cpu")
    np.testing.assert_array_equal(drawn["train"][:], read["train"][:])
    assert read["train"].committed.sources[0]["weights"] == str(Path("w.safetensors").resolve())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"pretrained": True}, "--pretrained"),
        ({"backbone": "resnet18", "pretrained": True, "offline": True}, "--offline"),
        ({**TINY, "views": 3}, "views"),
        ({"weights": "gone.pth"}, "gone.pth"),
        ({**TINY, "transform": Transform(16, 16)}, "leave out transform: .* named or chosen"),
        ({"transform": Transform(16, 16)}, "leave out transform: .* named or chosen"),
        ({"backbone": nn.Flatten(), "weights": "gone.pth", "offline": True}, "leave out weights, offline: .* module"),
        ({"backbone": nn.Flatten(), "random_weights": True}, "leave out random_weights: .* module"),
        ({"backbone": nn.Flatten(), "pretrained": True}, "leave out pretrained: .* module"),
    ],
)
def test_bad_input_is_refused_before_a_store_is_there(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        actstore.build(GLYPHS, "x.zarr", **options)
    assert not Path("x.zarr").exists()


def test_what_a_backbone_says_already_is_refused() -> None:
    network = load_backbone("small", random_weights=True)
    given: dict[str, Any] = {"weights": "gone.pth", "transform": Transform(16, 16), "layers": ["layer2"]}
    with pytest.raises(InvalidInputError, match=r"leave out weights, transform, layers: .* a Backbone"):
        actstore.build(GLYPHS, "x.zarr", backbone=network, **given)
    assert not Path("x.zarr").exists()


def test_a_file_that_names_no_network_is_refused() -> None:
    from safetensors.torch import save_file

    save_file(load_backbone("small", random_weights=True).module.state_dict(), "w.safetensors")
    with pytest.raises(InvalidInputError, match=r"w\.safetensors"):
        load_network(weights="w.safetensors")


def pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((8, 8)), np.float32)).permute(2, 0, 1)  # (3, 8, 8)


@pytest.mark.parametrize("views", [1, 2])
def test_a_plain_function_is_a_transform(views: int) -> None:
    store = actstore.build(
        GLYPHS, "x.zarr", backbone=nn.Flatten(), transform=pixels, views=views, workers=0, device="cpu", dtype="f4"
    )
    halves = store["train"][:].reshape(-1, 3, 8, 8)
    assert halves.max() > 1  # pixels of 0 to 255, as the function leaves them
    if views == 2:
        np.testing.assert_array_equal(halves, halves[..., ::-1])  # with its mirror image
    assert store.spec.provenance["transform"] == {"function": "pixels"}


@pytest.mark.parametrize("function", [lambda image: None, lambda image: torch.zeros(3, 8, 9), lambda image: 7])
def test_a_transform_that_gives_no_square_image_is_refused(function: Any) -> None:
    with pytest.raises(InvalidInputError, match="transform"):
        actstore.build(GLYPHS, "x.zarr", backbone=nn.Flatten(), transform=function)
    assert not Path("x.zarr").exists()


def plain_folder(root: Path, classes: int = 3, images: int = 5) -> None:
    for number in range(classes):
        for place in range(images):
            path = root / f"c{number}" / f"{place}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40), (60 * number, 40 * place, 9)).save(path)


def test_a_share_of_each_class_is_held_out_and_the_same_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    plain_folder(Path("photos"))
    store = actstore.build("photos", **TINY, val=0.4)
    assert "val: 6 images are held out" in (said := capsys.readouterr().err)
    assert "`actstore audit photos.zarr`" in said
    train, val = store["train"], store["val"]
    assert np.bincount(train.labels).tolist() == [3, 3, 3]
    assert np.bincount(val.labels).tolist() == [2, 2, 2]
    assert not set(train.ids) & set(val.ids)
    assert actstore.build("photos", **TINY, val=0.4)["val"].content == val.content  # the finished store is opened
    with pytest.raises(InvalidInputError, match="val_share"):
        actstore.build("photos", **TINY)
    again = actstore.build("photos", "again.zarr", **TINY, val=0.4)
    assert list(again["val"].ids) == list(val.ids)
    chunk = next(path for path in sorted(Path("photos.zarr/val").rglob("c/*/*")) if path.is_file())
    before = chunk.read_bytes()
    chunk.write_bytes(bytes(len(before)))
    actstore.verify("photos.zarr", repair=True)
    assert chunk.read_bytes() == before  # made again of the images of val alone
    assert SplitImages(val).load(0).size == (40, 40)


@pytest.mark.parametrize(("source", "share", "told"), [(GLYPHS, 0.4, "train, val"), ("photos", 1.5, "got 1.5")])
def test_a_share_that_cannot_be_held_out_is_refused(source: str, share: float, told: str) -> None:
    plain_folder(Path("photos"))
    with pytest.raises(InvalidInputError, match=told):
        actstore.build(source, **TINY, val=share)
    assert not list(Path.cwd().glob("*.zarr"))


def test_images_without_classes_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    plain_folder(Path("photos"), classes=1)
    actstore.build("photos/c0", "x.zarr", **TINY)
    assert "no image of photos/c0 has a label" in capsys.readouterr().err


class Net(nn.Flatten):
    pass


def numbers(image: Image.Image) -> Any:
    return np.zeros((3, 8, 8), np.float32)


def test_a_network_or_transform_of_another_kind_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    given: list[tuple[dict[str, Any], str]] = [
        ({"backbone": Net}, r"class Net; give a network of it: Net\(\)"),
        ({"backbone": Net(), "transform": numbers, "workers": 0}, "tensor .* got ndarray"),
    ]
    for options, told in given:
        with pytest.raises(InvalidInputError, match=told):
            actstore.build(GLYPHS, "x.zarr", device="cpu", **options)
    store = actstore.build(
        GLYPHS, "x.zarr", backbone=Net(), transform=lambda image: pixels(image), workers=2, device="cpu"
    )
    assert store.dim == 192
    small = load_backbone("small", random_weights=True).module
    actstore.build(GLYPHS, "y.zarr", backbone=small, workers=0, device="cpu")
    assert "transform: none was given" in capsys.readouterr().err
