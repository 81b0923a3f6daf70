"""Different published networks side by side: each reads an image as it does alone, and none outweighs the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import actstore
from actstore.backbones.construction import LENGTHS, is_joined, is_ours
from actstore.backbones.loading import Backbone, load_backbone
from actstore.backbones.network import JoinedTransform, Transform, joined_transform
from actstore.errors import InvalidInputError
from actstore.extraction.forward import load_recorded, network_of

FIRST, SECOND = "efficientnet-lite0", "efficientnet-lite2"
NAME = f"{FIRST}+{SECOND}"


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


def activations(backbone: Backbone, image: Image.Image) -> Tensor:
    (rows,) = backbone.activations(backbone.transform(image)[None]).values()
    return rows


@pytest.fixture(scope="module")
def joined() -> Backbone:
    return load_backbone(NAME)


def test_each_network_gives_what_it_gives_alone_but_for_its_length(joined: Backbone) -> None:
    image, found = noise(330, 310), activations(joined, noise(330, 310))
    parts = [load_backbone(name) for name in (FIRST, SECOND)]
    alone = [activations(part, image) for part in parts]
    assert joined.layers == {"activations": sum(rows.shape[1] for rows in alone)}
    for own, rows, name in zip(found.split([rows.shape[1] for rows in alone], 1), alone, (FIRST, SECOND), strict=True):
        # convolutions of float32 round differently from run to run; a wrong length would be off by percents
        torch.testing.assert_close(own, rows * (12 / LENGTHS[name]), rtol=1e-3, atol=1e-4)
    with torch.inference_mode():
        logits = joined.module(joined.transform(image)[None])
        each = [part.module(part.transform(image)[None]) for part in parts]
    torch.testing.assert_close(logits, sum(each) / 2, rtol=1e-5, atol=1e-4)
    assert joined.trained_classes == parts[0].trained_classes


def test_photos_of_one_kind_weigh_alike(joined: Backbone) -> None:
    scales = joined.module.get_buffer("scales")
    lengths = torch.tensor([LENGTHS[FIRST], LENGTHS[SECOND]])
    torch.testing.assert_close(scales * lengths, torch.full((2,), 12.0))


def test_a_store_names_the_networks_and_they_are_loaded_again(tmp_path: Path, joined: Backbone) -> None:
    for split in ("train", "val"):
        folder = tmp_path / "photos" / split / "a"
        folder.mkdir(parents=True)
        noise(300, 320).save(folder / f"{split}.png")
    store = actstore.build(tmp_path / "photos", tmp_path / "s.zarr", backbone=NAME, workers=0, views=2)
    record = network_of(store["train"])
    assert (record["backbone"], record["weights_sha256"]) == (NAME, joined.weights_sha256)
    again = load_recorded(record)
    assert again.transform == joined.transform
    views = again.transform.views(noise(300, 320), 2)
    mean = sum(next(iter(again.activations(view[None]).values())) for view in views) / 2
    np.testing.assert_allclose(store["train"].take([0]), mean, rtol=2e-3, atol=2e-3)


def test_the_transform_holds_what_each_network_expects() -> None:
    parts = (Transform(40, 32), Transform(60, 48, (0.4,) * 3))
    transform, image = joined_transform(parts), noise(90, 70)
    assert Transform.from_json(transform.to_json()) == transform == JoinedTransform(60, 48, parts=parts)
    pixels = transform.views(image, 2)
    assert pixels.shape == (2, transform.channels, 48, 48)
    for own, part in zip(transform.split(pixels), parts, strict=True):
        assert torch.equal(own, part.views(image, 2))


@pytest.mark.parametrize("name", ["small+resnet8", f"{FIRST}+small", f"{NAME}+{FIRST}", f"{FIRST}+"])
def test_other_networks_are_not_joined(name: str) -> None:
    assert not is_joined(name)
    assert not is_ours(name)
    with pytest.raises(InvalidInputError, match=r"efficientnet-lite0.*side by side|side by side.*efficientnet-lite0"):
        load_backbone(name)


def test_random_weights_are_a_function_of_the_seed() -> None:
    first, again, other = (load_backbone(NAME, random_weights=True, seed=seed) for seed in (0, 0, 1))
    assert first.weights_sha256 == again.weights_sha256 != other.weights_sha256
    assert first.trained_classes is None
