"""`ppa baseline` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import click.testing
import numpy as np
import pytest

import actstore
from baselines.trainings import OPTIONS
from cli.group import Commands
from cli.ppa.baseline import COMMON, baseline


@click.group(cls=Commands)
def ppa() -> None:
    """The group that the command belongs to."""


ppa.add_command(baseline)
SPLIT = {"base": ["a", "c", "d"], "novel": ["b"]}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a store and a split in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ACTSTORE", raising=False)
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 20)
    rows = (random.random((4, 8))[labels] + 0.2 * random.random((80, 8))).astype(np.float32)
    actstore.from_arrays(Path("x.zarr"), {"train": (rows, labels)}, classes=list("abcd"))
    Path("split.json").write_text(json.dumps(SPLIT))
    return tmp_path


def run(*arguments: Any, code: int = 0) -> click.testing.Result:
    result = click.testing.CliRunner().invoke(ppa, ["baseline", *(str(one) for one in arguments)])
    assert result.exit_code == code, result.output
    return result


def test_an_embedding_from_the_store_of_this_folder() -> None:
    result = json.loads(run("triplet", "--steps", 5, "--device", "cpu", "--json").stdout)
    assert (result["baseline"], result["folder"], result["steps"]) == ("triplet", "runs/triplet", 5)
    assert {file.name for file in Path("runs/triplet").iterdir()} >= {"model.safetensors", "model.json", "log.csv"}
    assert Path("runs/triplet/log.csv").read_text().startswith("step,loss,active,seconds\n5,")
    again = run("triplet", "--steps", 5)
    assert "triplet after 5 steps" in again.stdout
    assert "split.json of this folder" in again.stderr
    refused = run("triplet", "--steps", 5, "--seed", 1, code=1)
    assert "config seed was 0, is 1" in refused.stderr
    assert "triplet after 6 steps" in run("triplet", "--steps", 6, "--restart").stdout


def test_classifiers_of_the_base_and_of_all_categories() -> None:
    from predictor.protocol.head import read_head

    for name, classes in (("head", "acd"), ("oracle", "acdb")):
        result = json.loads(run(name, "--epochs", 3, "--batch-size", 8, "--out", f"my/{name}", "--json").stdout)
        assert 0 <= result["held_out_top1"] <= 1
        assert read_head(Path("my", name, "head.safetensors")).classes == tuple(classes)


def test_backbones_are_trained_and_stores_extracted_for_eval() -> None:
    from actstore.backbones.construction import build_network
    from actstore.backbones.loading import load_backbone
    from actstore.backbones.weights import save_weights
    from actstore.extraction.build import BuildOptions, build
    from actstore.images.opening import open_images
    from actstore.streams.sampling import draw_support
    from baselines.registry import make
    from predictor.protocol.base_categories import BaseCategories
    from predictor.protocol.category_split import alphabetical_split

    Path("split.json").unlink()
    glyphs = "glyphs:10x3x2"
    sets = open_images(glyphs)
    split = alphabetical_split(sets["train"].classes)
    save_weights(Path("best.safetensors"), build_network("small", 9), "small", split.base)
    images = ("--images", glyphs, "--backbone", "small", "--weights", "best.safetensors", "--no-flip")
    few = ("--steps", 2, "--batch-size", 8, "--device", "cpu", "--json")
    tuned = json.loads(run("finetune-images", *images, *few, "--shots", 2).stdout)
    triplet = json.loads(run("triplet-images", *images, *few).stdout)
    assert list(actstore.open(tuned["store"]).splits) == ["val"]
    assert set(actstore.open(triplet["store"]).splits) == {"train", "val"}
    assert json.loads(run("triplet-images", *images, *few).stdout)["store"] == triplet["store"]  # nothing to do

    options = BuildOptions("cpu", workers=0)
    train = build(sets, glyphs, Path("plain.zarr"), load_backbone("small", Path("best.safetensors")), options)["train"]
    rows = draw_support(train.class_index, np.array([train.class_index.position(split.novel[0])]), 2, 0, 0)
    for method in make("finetune-images", "triplet-images", train=train, split=split):
        assert method.store is not None
        own = actstore.open(method.store)
        method.prepare(BaseCategories.of_split(own["train"] if "train" in own.splits else train, split.base))
        queries, support = own["val"].to_torch().float(), train.to_torch(rows.ravel())[None].float()
        assert method.scores(queries, support).shape == (20, 10)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["knn"], 2, "no method 'knn'; known: triplet"),
        ([], 2, "Missing argument 'NAME'"),
        (["triplet", "--shots", 2], 2, "--shots does not apply to the baseline triplet"),
        (["oracle", "--images", "photos"], 2, "--images does not apply to the baseline oracle"),
        (["finetune-images"], 1, "the baseline finetune-images needs --images"),
        (["triplet-images", "--images", "glyphs:4x2x1"], 1, "needs --backbone"),
        (["triplet-images", "--images", "nowhere", "--backbone", "small"], 1, "no such file or folder: nowhere"),
        (["triplet", "--store", "absent.zarr"], 1, "absent.zarr"),
        (["triplet", "--split", "val"], 1, "val"),
        (["triplet", "--split-file", "absent.json"], 1, "no split file at absent.json"),
        (["triplet", "--device", "abacus"], 1, "device must be auto"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: list[Any], code: int, expected: str) -> None:
    result = run(*arguments, code=code)
    assert expected in result.stderr
    assert "Traceback" not in result.stderr


def test_every_option_belongs_to_some_baseline() -> None:
    taken = set().union(*OPTIONS.values())
    assert taken | COMMON == {parameter.name for parameter in baseline.params if parameter.expose_value}
