"""The network that made a store's activations, loaded again for new images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import actstore
from actstore.backbones import loading
from actstore.backbones.loading import load_backbone
from actstore.backbones.weights import save_weights
from actstore.errors import InvalidInputError
from actstore.extraction.build import BuildOptions, build
from actstore.extraction.forward import activations_of, load_recorded, network_of
from actstore.images.image_set import ImageItem
from actstore.images.opening import open_images
from actstore.upkeep.repair import repair_faults
from actstore.upkeep.verify import verify_store

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    from actstore.images.glyphs import write_glyphs

    write_glyphs(tmp_path / "images", 3, 4, 0, size=40)
    return tmp_path / "images"


def build_store(images: Path, path: Path, weights: Path | None = None, views: int = 1) -> actstore.Split:
    backbone = load_backbone("small", weights, random_weights=weights is None)
    written = None if weights is None else str(weights)
    options = BuildOptions("cpu", workers=0, weights=written, layout={"dtype": "f4"}, views=views)
    return build(open_images(str(images)), str(images), path, backbone, options)["train"]


def items_of(images: Path, split: actstore.Split) -> list[ImageItem]:
    return [ImageItem(split.ids[row], None, str(images / "train")) for row in range(len(split))]


@pytest.mark.parametrize("views", [1, 10])
def test_the_same_images_give_the_rows_of_the_store(images: Path, tmp_path: Path, views: int) -> None:
    split = build_store(images, tmp_path / "x.zarr", views=views)
    record = network_of(split)
    assert (record["backbone"], record["layer"], record["weights"]) == ("small", "activations", None)
    rows, positions, failures = activations_of(load_recorded(record), items_of(images, split), CPU, record["views"], 5)
    assert (positions, failures) == (list(range(12)), [])
    expected = split.take(np.arange(12))
    np.testing.assert_allclose(rows, expected, atol=1e-4 * float(expected.max()))


def test_unreadable_images_are_told_apart(images: Path, tmp_path: Path) -> None:
    split = build_store(images, tmp_path / "x.zarr")
    items = items_of(images, split)[:4]
    items[1].path.write_bytes(b"no image")
    items[3].path.unlink()
    rows, positions, failures = activations_of(load_recorded(network_of(split)), items, CPU)
    assert positions == [0, 2]
    assert rows.shape == (2, 256)
    assert [position for position, _ in failures] == [1, 3]
    assert "not an image of a known kind" in failures[0][1]
    assert activations_of(load_recorded(network_of(split)), [], CPU)[0].shape == (0, 256)


def test_weights_from_a_file_that_may_move(images: Path, tmp_path: Path) -> None:
    first, second = (load_backbone("small", seed=seed, random_weights=True) for seed in (1, 2))
    file = tmp_path / "w.safetensors"
    transform = replace(first.transform, resize=36, mean=(0.1, 0.2, 0.3))
    save_weights(file, first.module, "small", transform=transform)
    split = build_store(images, tmp_path / "x.zarr", file)
    record = network_of(split)
    assert load_recorded(record).weights_sha256 == first.weights_sha256
    file.rename(tmp_path / "moved.safetensors")
    with pytest.raises(InvalidInputError, match=r"the weights of small are not at .*w\.safetensors; say where with"):
        load_recorded(record)
    assert load_recorded(record, tmp_path / "moved.safetensors").weights_sha256 == first.weights_sha256
    torch.save(first.module.state_dict(), tmp_path / "plain.pth")  # a file that says nothing of a transform
    assert load_recorded(record, tmp_path / "plain.pth").transform == transform
    save_weights(file, second.module, "small")
    with pytest.raises(InvalidInputError, match=r"w\.safetensors are not those the activations were made with"):
        load_recorded(record)


def test_weights_that_torch_keeps(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store built without --weights names no file: they were drawn, or found in torch's cache."""
    published = load_backbone("small", seed=5, random_weights=True)
    file = tmp_path / "cached.pth"
    torch.save(published.module.state_dict(), file)
    monkeypatch.setattr(loading, "find_published", lambda *_: [file])
    split = build_store(images, tmp_path / "x.zarr")
    record = network_of(split) | {"weights_sha256": published.weights_sha256}
    assert load_recorded(record).weights_sha256 == published.weights_sha256
    with pytest.raises(InvalidInputError, match="of small in the cache of torch are not those"):
        load_recorded(record | {"weights_sha256": "0" * 64})


def test_a_store_built_with_weights_that_torch_keeps_is_repaired(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cached.pth"
    torch.save(load_backbone("small", seed=5, random_weights=True).module.state_dict(), file)
    monkeypatch.setattr(loading, "find_published", lambda *_: [file])
    options = BuildOptions("cpu", workers=0)
    store = build(open_images(str(images)), str(images), tmp_path / "x.zarr", load_backbone("small"), options)
    before = store["train"].take(np.arange(12))
    chunk = tmp_path / "x.zarr/train/activations/c/0/0"
    data = bytearray(chunk.read_bytes())
    data[5] ^= 1
    chunk.write_bytes(data)
    assert [said for _, said in repair_faults(store, verify_store(store))] == ["repaired from its source"]
    np.testing.assert_array_equal(store["train"].take(np.arange(12)), before)


def test_imported_rows_name_no_network(tmp_path: Path) -> None:
    rows = np.ones((4, 8), np.float32)
    split = actstore.from_arrays(tmp_path / "x.zarr", {"train": (rows, np.zeros(4, int))})["train"]
    assert network_of(split) == {}
    with pytest.raises(InvalidInputError, match="the store does not name one: its rows were imported"):
        load_recorded(network_of(split))
