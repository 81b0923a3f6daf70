"""Training of a backbone: what it leaves, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from actstore.backbones.construction import build_network
from actstore.backbones.loading import load_backbone
from actstore.backbones.weights import read_weights
from actstore.errors import DamagedError, DivergedError, InvalidInputError, LockedError
from actstore.images.opening import open_images
from predictor.protocol.category_split import CategorySplit, alphabetical_split
from predictor.training import RunOptions
from predictor.training.backbones.images import select_images
from predictor.training.backbones.trainee import kept_line
from predictor.training.loop import read_log
from tests.predictor.training.backbones.tiny import EVERY_STEP, TINY, TINY_GLYPHS, stop_after, train, weights_of


def test_a_training_leaves_weights_that_the_backbone_loads(tmp_path: Path) -> None:
    steps, decoded = list[tuple[int, int]](), list[tuple[int, int]]()
    result = train(
        tmp_path,
        report=lambda done, total, figures: steps.append((done, total)),
        decoded=lambda done, total: decoded.append((done, total)),
    )
    assert (result.classes, result.train_images, result.val_images, result.steps) == (9, 72, 27, 12)
    rows = read_log(tmp_path)
    assert [row["epoch"] for row in rows] == [1, 2]
    assert rows[1]["train_loss"] < rows[0]["train_loss"]
    assert rows[-1]["images_per_second"] > 0
    assert (result.best_epoch, result.best_val_top1) == (2, pytest.approx(rows[-1]["val_top1"], abs=1e-6))
    assert steps == [(done, 12) for done in range(1, 13)]
    assert decoded == [(72, 72), (27, 27)]
    assert list(rows[0]) == [
        "epoch", "step", "lr", "train_loss", "train_top1", "val_top1", "val_top5", "images_per_second", "seconds",
    ]  # fmt: skip
    backbone = load_backbone("small", tmp_path / "best.safetensors")
    assert backbone.trained_classes == alphabetical_split(open_images(TINY_GLYPHS)["train"].classes).base
    assert backbone.transform == build_network("small", 2).transform
    assert weights_of(tmp_path)["fc.weight"].shape == (9, 256)
    with Image.open(tmp_path / "curves.png") as image:
        assert image.width > 800
    assert json.loads((tmp_path / "checkpoint.json").read_text())["state"]["step"] == 12


def test_held_out_images_are_looked_at_as_often_as_asked(tmp_path: Path) -> None:
    result = train(tmp_path, replace(TINY, epochs=5, evaluations=2))
    assert [row["epoch"] for row in read_log(tmp_path)] == [2, 4, 5]
    assert (result.epochs, result.best_epoch) == (5, 5)
    assert [replace(TINY, evaluations=count).epochs_per_line for count in (0, 1, 2, 9)] == [1, 2, 1, 1]


def test_images_of_val_choose_no_epoch(tmp_path: Path) -> None:
    """Base accuracy is measured on them later; a tenth of train, which is not, may choose."""
    history = [{"epoch": 1.0, "val_top1": 0.5}, {"epoch": 2.0, "val_top1": 0.9}, {"epoch": 3.0, "val_top1": 0.7}]
    assert [kept_line(history, may_choose, TINY)["epoch"] for may_choose in (False, True)] == [3, 2]
    growing = replace(TINY, epochs=3, augment="crop", start_size=TINY.image_size // 2, start_share=0.6)
    assert kept_line(history, True, growing)["epoch"] == 3  # accuracies at other sizes do not compare
    for images, may_choose in ((TINY_GLYPHS, False), ("glyphs:10x8x0", True)):
        sets = open_images(images)
        assert select_images(sets, alphabetical_split(sets["train"].classes), 0).may_choose == may_choose
    worse = replace(TINY, epochs=3, schedule="step", decay_epochs=1)
    train(tmp_path, worse)
    for name, tensor in weights_of(tmp_path, "best.safetensors").items():
        assert torch.equal(tensor, weights_of(tmp_path, "last.safetensors")[name])


@pytest.mark.parametrize("cosine", [False, True])
def test_held_out_accuracy_is_that_of_the_best_weights(tmp_path: Path, cosine: bool) -> None:
    result = train(tmp_path, replace(TINY, epochs=4, learning_rate=0.1, cosine=cosine))
    backbone = load_backbone("small", tmp_path / "best.safetensors")
    held_out = select_images(open_images(TINY_GLYPHS), CategorySplit(backbone.trained_classes or ()), 0).validation
    images = torch.stack([backbone.transform(item.load()) for item in held_out.items])
    with torch.inference_mode():
        found = backbone.module(images).argmax(1).numpy()
    # one image may lie on a rounding: batches of other sizes round differently
    assert (found == held_out.targets).mean() == pytest.approx(result.best_val_top1, abs=1.1 / len(found))
    assert result.best_val_top1 > 0.3  # chance is 0.11


def test_a_finished_training_is_not_repeated(tmp_path: Path) -> None:
    first = train(tmp_path)
    before = (tmp_path / "last.safetensors").stat().st_mtime_ns
    again = train(tmp_path)
    assert (tmp_path / "last.safetensors").stat().st_mtime_ns == before
    assert again == first


@pytest.mark.numeric
def test_global_random_state_neither_matters_nor_changes(tmp_path: Path) -> None:
    torch.default_generator.manual_seed(5)
    before = torch.get_rng_state()
    short = replace(TINY, epochs=1)
    train(tmp_path / "a", short)
    assert torch.equal(torch.get_rng_state(), before)
    torch.default_generator.manual_seed(6)
    train(tmp_path / "b", short)
    for name, tensor in weights_of(tmp_path / "a").items():
        assert torch.equal(tensor, weights_of(tmp_path / "b")[name]), name
    train(tmp_path / "c", replace(short, seed=1))
    assert not torch.equal(weights_of(tmp_path / "a")["fc.weight"], weights_of(tmp_path / "c")["fc.weight"])


def test_another_training_is_not_resumed(tmp_path: Path) -> None:
    stop_after(tmp_path, 3)
    with pytest.raises(InvalidInputError, match=r"another training: config learning rate was 0\.05, is 0\.1; repeat"):
        train(tmp_path, replace(TINY, learning_rate=0.1))
    with pytest.raises(InvalidInputError, match="split base was 9 classes, is 18; split novel"):
        train(tmp_path, images="glyphs:20x8x3")
    with pytest.raises(InvalidInputError, match="source images was 72, is 81"):
        train(tmp_path, images="glyphs:10x9x3")
    names = open_images(TINY_GLYPHS)["train"].classes
    with pytest.raises(InvalidInputError, match=r"split base has 'U\+.*', which it did not"):
        train(tmp_path, split=CategorySplit(tuple(names[1:]), tuple(names[:1])))
    assert train(tmp_path, replace(TINY, learning_rate=0.1), options=RunOptions(restart=True)).epochs == 2


def test_a_damaged_checkpoint_and_a_second_training_in_one_folder(tmp_path: Path) -> None:
    stop_after(tmp_path, 3)
    with pytest.raises(LockedError, match="another process is training"):
        train(tmp_path, report=lambda *_: train(tmp_path))
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DamagedError, match="is damaged or no safetensors file"):
        train(tmp_path)


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    wild = replace(TINY, learning_rate=1e32, schedule="constant", epochs=9, warmup_epochs=0.0)
    with pytest.raises(DivergedError, match=r"became (inf|nan) in step \d in "):
        train(tmp_path, wild, options=EVERY_STEP)
    path = tmp_path / "checkpoint.safetensors"
    if path.exists():  # the very first step may be the bad one
        assert all(torch.isfinite(tensor).all() for tensor in read_weights(path).tensors.values())
    assert not (tmp_path / "best.safetensors").exists()
