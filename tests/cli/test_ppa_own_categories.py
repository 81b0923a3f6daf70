"""`ppa adapt` without phi: from a network alone, and from the network's own classifier; unknown, and a budget."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import actstore
from predictor.classifier.classifier_file import load_classifier, save_classifier
from predictor.classifier.scoring import bias_beside_known
from predictor.protocol.head import read_head

Run = Callable[..., Any]
ROWS = ("--support-store", "x.zarr", "--rows", "85:110")  # 11 of c7, 12 of c8, 2 of c9


@pytest.fixture
def head(here: Path) -> Path:
    """A classifier of the seven base categories, from their means."""
    means = torch.from_numpy(actstore.open("x.zarr")["train"].means()[:7])
    centre = means.mean(0)
    bias = (-(means + centre) * (means - centre)).sum(1) * 2
    np.savez(here / "head.npz", fc_weight=(4 * (means - centre)).numpy(), fc_bias=bias.numpy(),
             classes=[f"c{number}" for number in range(7)])  # fmt: skip
    return here / "head.npz"


@pytest.fixture
def photos(here: Path) -> Path:
    """Two categories of three plain images."""
    from PIL import Image

    for name, colour in (("red", (200, 20, 20)), ("blue", (20, 20, 200))):
        (here / "photos" / name).mkdir(parents=True)
        for number in range(3):
            shade = tuple(part + 15 * number for part in colour)
            Image.new("RGB", (40, 40), shade).save(here / "photos" / name / f"{number}.png")
    return here / "photos"


def test_from_a_network_alone(here: Path, ppa: Run, photos: Path) -> None:
    from PIL import Image

    from actstore.backbones.loading import load_backbone
    from actstore.backbones.weights import save_weights

    save_weights(Path("small.safetensors"), load_backbone("small", random_weights=True).module, "small")
    start = ("adapt", "--backbone", "small", "--weights", "small.safetensors", "--support", photos)
    said = json.loads(ppa(*start, "--json").stdout)
    assert (said["categories"], said["learnt"], said["aggregate"]) == (2, ["blue", "red"], "mean")
    found = load_classifier(Path("classifier.safetensors"))
    assert (found.base, found.about["network"]["backbone"]) == ((), "small")
    assert said["unknown_at"] == pytest.approx(found.threshold)
    answers = json.loads(ppa("predict", photos, "--json", "--unknown-at", -1).stdout)
    assert [one["top"][0]["category"] for one in answers] == ["blue"] * 3 + ["red"] * 3
    assert not any(one["unknown"] for one in answers)
    assert all(one["unknown"] for one in json.loads(ppa("predict", photos, "--json", "--unknown-at", 1).stdout))
    (photos / "blue").rename(here / "blue")
    said_of_one = ppa(*start[:-1], photos, "--out", "one.safetensors")
    assert "'red' is the only category: an image is that or unknown" in said_of_one.stderr
    (here / "blue").rename(photos / "blue")
    ppa(*start, "--keep-known", "--out", "known.safetensors")
    beside = load_classifier(Path("known.safetensors"))
    assert len(beside.base) == len(beside.base_parameters) > 0
    assert beside.categories[-2:] == ("blue", "red")
    (here / "more" / "grey").mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (40, 40), (90 + 20 * number,) * 3).save(here / "more" / "grey" / f"{number}.png")
    add = ("adapt", "--classifier", "known.safetensors", "--weights", "small.safetensors", "--support", here / "more")
    ppa(*add, "--out", "added.safetensors")
    added = load_classifier(Path("added.safetensors"))
    assert added.novel_bias == pytest.approx(bias_beside_known(added))  # fitted anew with what was added
    assert added.novel_bias != pytest.approx(beside.novel_bias)
    ppa("calibrate", "--classifier", "known.safetensors", "--novel-bias", 0.5)
    ppa(*add, "--out", "by-hand.safetensors")
    assert load_classifier(Path("by-hand.safetensors")).novel_bias == 0.5
    more = ("--classifier", "known.safetensors", "--support", photos, "--max-base-loss", "2%", "--extend")
    assert "needs rows of the base categories" in ppa("adapt", *more, code=2).stderr


def test_beside_the_networks_own_classifier(here: Path, ppa: Run, head: Path) -> None:
    start = ("adapt", "--base", "head", "--head", head, "--store", "x.zarr", *ROWS)
    plain = json.loads(ppa(*start, "--json").stdout)
    found = load_classifier(Path("classifier.safetensors"))
    assert found.categories == tuple(f"c{number}" for number in range(10))
    assert found.unknown is not None
    assert found.unknown.base_threshold is not None
    rows = actstore.open("x.zarr")["val"].to_torch().float()
    assert (found.scores(rows).argmax(1) == torch.arange(10).repeat_interleave(4)).float().mean() > 0.6
    kept = json.loads(ppa(*start, "--max-base-loss", "0%", "--out", "kept.safetensors", "--json").stdout)
    assert kept["base_top1"] == kept["base_top1_alone"]
    assert kept["without_budget"]["novel_bias"] == plain["novel_bias"]
    text = ppa(*start, "--max-base-loss", "2%", "--out", "two.safetensors").stdout
    assert "the constant for the best harmonic mean" in text
    learner = load_classifier(Path("two.safetensors"))
    learner.about["network"] = {"backbone": "small", "weights_sha256": "a" * 64}
    save_classifier(Path("two.safetensors"), learner)
    shutil.copytree("x.zarr", "other.zarr")  # where the store was, another one lies by now
    actstore.open("other.zarr").add_provenance(backbone="small", weights_sha256="b" * 64)
    again = ("adapt", "--classifier", "two.safetensors", "--store", "other.zarr", *ROWS, "--extend")
    refused = ppa(*again, "--max-base-loss", "2%", code=1).stderr
    assert "other.zarr holds activations of another network (small) than the classifier's" in refused


def test_in_the_table_and_calibrated(here: Path, ppa: Run, head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("predictor.protocol.calibration.MOST_SHORTFALL", 99)  # the rows are too few for a constant
    asked = ("eval", "--store", "x.zarr", "--methods", "class-mean", "--base", "head", "--head", head, "--draws", 2,
             "--shots", "1,3", "--split-file", "split.json")  # fmt: skip
    rows = json.loads(ppa(*asked, "--json").stdout)
    assert [(row["key"], row["variant"]) for row in rows if row["shots"] == "1"] == [
        ("class-mean", ""), ("head", ""), ("head", "calibrated")
    ]  # fmt: skip
    assert all(0 <= row["auroc"] <= 100 for row in rows)
    fit = ("calibrate", "--base", "head", "--store", "x.zarr", "--split-file", "split.json", "--tasks", 3, "--shots",
           "1,2", "--json")  # fmt: skip
    fits = json.loads(ppa(*fit, "--head", head).stdout)
    assert [one["shots"] for one in fits] == [1, 2]
    # without --head: that of the network which the store names
    own = read_head(head)
    monkeypatch.setattr("actstore.extraction.forward.network_of", lambda rows: {"backbone": "small"})
    monkeypatch.setattr("actstore.extraction.forward.load_recorded", lambda record: record["backbone"])
    monkeypatch.setattr("predictor.protocol.head.head_of", {"small": own}.get)
    assert json.loads(ppa(*fit).stdout) == fits
    assert json.loads(ppa(*(one for one in asked if one not in ("--head", head)), "--json").stdout) == rows


def test_phi_finds_the_store_it_was_trained_on(here: Path, ppa: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.chdir(here)
    (here / "elsewhere").mkdir()
    os.chdir(here / "elsewhere")  # no store lies here
    ppa("adapt", "--phi", here / "runs" / "phi2", "--support-store", here / "x.zarr", "--rows", "85:110")
    assert load_classifier(Path("classifier.safetensors")).about["store"].endswith("x.zarr")
