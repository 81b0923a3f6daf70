"""Ten views of an image: what they show, their mean in a store, and that views are never mixed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from actstore.backbones.loading import Backbone, load_backbone
from actstore.backbones.network import Transform
from actstore.errors import ActstoreError, InvalidInputError
from actstore.extraction.build import BuildOptions, build
from actstore.images.opening import open_images
from actstore.upkeep.repair import repair_faults
from actstore.upkeep.verify import verify_store

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]

PLAIN = Transform(resize=20, crop=16, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone("small", random_weights=True, seed=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(3):
            pixels = random.integers(0, 255, (40 + number, 60, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path / "images"


def test_the_ten_views_are_the_centre_the_corners_and_their_mirror_images() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    views = PLAIN.views(Image.fromarray(pixels), 10)
    image = torch.from_numpy(pixels).permute(2, 0, 1) / 255  # (3, 20, 30)
    places = [(2, 7), (0, 0), (4, 0), (0, 14), (4, 14)]  # top, left
    for view, (top, left) in enumerate(places):
        crop = image[:, top : top + 16, left : left + 16]
        torch.testing.assert_close(views[view], crop)
        torch.testing.assert_close(views[view + 5], crop.flip(2))
    assert torch.equal(views[0], PLAIN(Image.fromarray(pixels)))
    assert torch.equal(PLAIN.views(Image.fromarray(pixels), 1)[0], views[0])
    assert torch.equal(PLAIN.views(Image.fromarray(pixels), 2), views[[0, 5]])
    with pytest.raises(InvalidInputError, match="views must be 1, 2 or 10, got 5"):
        PLAIN.views(Image.fromarray(pixels), 5)


def test_a_store_of_ten_views_holds_their_mean(folder: Path, backbone: Backbone) -> None:
    options = BuildOptions("cpu", 2, 0, views=10)
    store = build(open_images(str(folder)), str(folder), folder.parent / "x.zarr", backbone, options)
    expected = []
    for path in sorted(folder.rglob("*.png")):
        with Image.open(path) as image, torch.no_grad():
            views = backbone.transform.views(image.convert("RGB"), 10)
            expected.append(backbone.module.features(views).mean(0).numpy())
    np.testing.assert_allclose(store["train"][:], np.stack(expected), rtol=3e-3, atol=1e-3)
    assert store.spec.provenance["views"] == 10
    assert store["train"].committed.sources[0]["views"] == 10


def test_one_view_is_said_nowhere(folder: Path, backbone: Backbone) -> None:
    store = build(open_images(str(folder)), str(folder), folder.parent / "x.zarr", backbone, BuildOptions("cpu", 2, 0))
    assert "views" not in store.spec.provenance
    assert "views" not in store["train"].committed.sources[0]


@pytest.mark.parametrize(("first", "then"), [(1, 10), (10, 1)])
def test_views_are_never_mixed(folder: Path, backbone: Backbone, first: int, then: int) -> None:
    def stop(split: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    target, sets = folder.parent / "x.zarr", open_images(str(folder))
    before, after = (BuildOptions("cpu", 2, 0, layout={"chunk_rows": 2}, views=views) for views in (first, then))
    with pytest.raises(KeyboardInterrupt):
        build(sets, str(folder), target, backbone, before, stop)
    with pytest.raises(ActstoreError, match=f"{first} view.*asked for were {then}"):
        build(sets, str(folder), target, backbone, after)
    assert len(build(sets, str(folder), target, backbone, before)["train"]) == 6
    with pytest.raises(ActstoreError, match=f"{first} view.*asked for were {then}"):
        build(sets, str(folder), target, backbone, after)


def test_a_bad_chunk_of_ten_views_is_built_again(folder: Path) -> None:
    untrained = load_backbone("small", random_weights=True)
    options = BuildOptions("cpu", 2, 0, layout={"chunk_rows": 2}, views=10)
    store = build(open_images(str(folder)), str(folder), folder.parent / "x.zarr", untrained, options)
    chunk = store.path / "train/activations/c/1/0"
    before = chunk.read_bytes()
    chunk.unlink()
    ((_, said),) = repair_faults(store, verify_store(store))
    assert said == "repaired from its source"
    assert chunk.read_bytes() == before
