"""`ppa adapt` and `ppa predict` with images, through the network that made the store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import actstore
from predictor.classifier.classifier_file import load_classifier

Run = Callable[..., Any]


def test_folders_of_images_become_categories(studio: Path, ppa: Run, adapt: tuple[Any, ...]) -> None:
    names = sorted(entry.name for entry in Path("new").iterdir())
    said = json.loads(ppa(*adapt, "--json").stdout)
    assert (said["learnt"], said["examples"], said["categories"]) == (names, 7, 7)  # the split took one of the six
    found = load_classifier(Path("classifier.safetensors"))
    assert [len(rows) for rows in found.support.values()] == [4, 3]
    assert found.about["network"]["backbone"] == "small"


@pytest.mark.numeric
def test_images_of_the_store_give_its_rows(studio: Path, ppa: Run, adapt: tuple[Any, ...]) -> None:
    """The same network and transform as in `actstore build`: an image is scored like its stored row."""
    ppa(*adapt)
    train = actstore.open("g.zarr")["train"]
    images = [studio / "images" / "train" / train.ids[row] for row in (0, 9, 20)]
    found = json.loads(ppa("predict", *images, "--top", 50, "--device", "cpu", "--json").stdout)
    expected = load_classifier(Path("classifier.safetensors")).predict(train.to_torch([0, 9, 20]), top=50)
    for one, image, line in zip(found, images, expected, strict=True):
        assert one["image"] == image.as_posix()  # as it was given: two folders may hold files of one name
        shares = [each["probability"] for each in one["top"]]
        assert shares == sorted(shares, reverse=True)
        named = {each["category"]: each["probability"] for each in one["top"]}
        assert named == pytest.approx(dict(line), abs=1e-4)  # the store's rows are fp16


def test_a_support_image_is_recognised(studio: Path, ppa: Run, adapt: tuple[Any, ...]) -> None:
    ppa(*adapt, "--novel-bias", 0.5)
    found = json.loads(ppa("predict", "new", "--top", 1, "--device", "cpu", "--json").stdout)
    assert len(found) == 7
    for one in found:
        folder, name = Path(one["image"]).parent.name, one["top"][0]["category"]
        assert name == folder


def test_an_empty_category_folder(studio: Path, ppa: Run, adapt: tuple[Any, ...]) -> None:
    Path("new/okapi").mkdir()
    Path("new/okapi/notes.txt").write_text("no image")
    failed = ppa(*adapt, code=1).stderr
    assert "category 'okapi' has no example: new/okapi holds no image (--on-error skip" in failed
    assert not Path("classifier.safetensors").exists()
    assert "'okapi'" in ppa(*adapt, "--on-error", "skip").stderr
    assert "okapi" not in ppa("categories", "list").stdout


def test_a_support_image_that_cannot_be_read(studio: Path, ppa: Run, adapt: tuple[Any, ...]) -> None:
    first, second = sorted(Path("new").iterdir())
    (first / "broken.jpg").write_bytes(b"no image")
    failed = ppa(*adapt, code=1).stderr
    assert f"{first}/broken.jpg: not an image of a known kind" in failed
    assert failed.count("broken.jpg") == 1
    assert "(--on-error skip leaves such images out)" in failed
    assert not Path("classifier.safetensors").exists()
    skipped = ppa(*adapt, "--on-error", "skip")
    assert f"skipped {first}/broken.jpg: " in skipped.stderr
    assert "from 7 examples" in skipped.stdout
    for image in second.iterdir():
        image.write_bytes(b"")
    assert f"'{second.name}', as none of its images" in ppa(*adapt, "--force", "--on-error", "skip").stderr
    for image in first.iterdir():
        image.write_bytes(b"")
    assert "has no example left" in ppa(*adapt, "--force", "--on-error", "skip", code=1).stderr
    assert "the file is empty" in ppa("predict", second, "--on-error", "fail", code=1).stderr


def test_a_name_that_is_a_base_category(studio: Path, ppa: Run, adapt: tuple[Any, ...]) -> None:
    base = actstore.open("g.zarr").classes[0]
    next(Path("new").iterdir()).rename(Path("new") / base)
    assert "is a base category already; give the new category another name" in ppa(*adapt, code=1).stderr


@pytest.mark.parametrize(
    ("support", "message"),
    [("flat", "flat/CATEGORY/"), ("absent", "absent/CATEGORY/")],
)
def test_support_in_no_folders(studio: Path, ppa: Run, adapt: tuple[Any, ...], support: str, message: str) -> None:
    Path("flat").mkdir()
    assert message in ppa(*adapt, "--support", support, code=1).stderr


def test_a_folder_without_images(studio: Path, ppa: Run, adapt: tuple[Any, ...]) -> None:
    ppa(*adapt)
    Path("empty").mkdir()
    assert "empty holds no image (.jpg" in ppa("predict", "empty", code=1).stderr


def test_weights_of_another_network(studio: Path, ppa: Run, adapt: tuple[Any, ...]) -> None:
    from actstore.backbones.loading import load_backbone
    from actstore.backbones.weights import save_weights

    other = load_backbone("small", seed=9, random_weights=True)
    save_weights(Path("other.safetensors"), other.module, "small")
    refused = ppa(*adapt, "--weights", "other.safetensors", code=1).stderr
    assert "other.safetensors are not those the activations were made with" in refused
    assert "the weights of small are not at absent.pth" in ppa(*adapt, "--weights", "absent.pth", code=1).stderr
