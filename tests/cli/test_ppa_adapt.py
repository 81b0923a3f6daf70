"""`ppa adapt`, `predict`, `categories` and `export` with rows of a store."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import actstore
from predictor.classifier.classifier_file import load_classifier

Run = Callable[..., Any]
CLASSES = [f"c{number}" for number in range(10)]
NEW = ("--out", "other.safetensors")
ROWS = ("--support-store", "x.zarr", "--rows", "85:110")  # 11 of c7, 12 of c8, 2 of c9


@pytest.fixture
def learnt(here: Path, ppa: Run) -> Path:
    ppa("adapt", "--phi", "runs/phi2", *ROWS)
    return here / "classifier.safetensors"


def test_from_a_split_to_an_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ppa: Run, make_activations: Any
) -> None:
    """All of it in an empty folder, each command with what the one before it left."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ACTSTORE", raising=False)
    splits = {"train": make_activations(8, 0), "val": make_activations(4, 1)}
    actstore.from_arrays(Path("new.zarr"), splits, classes=CLASSES)
    ppa("split", "--novel-share", 0.3)
    ppa("train", "--phi", "phi2", "--epochs", 2, "--batches", 25, "--lr", 0.05)
    ppa("calibrate", "--phi", "runs/phi2", "--tasks", 4, "--shots", "1,3")
    ppa("eval", "--phi", "runs/phi2", "--draws", 2, "--shots", "1", "--out", "table.md")
    rows = [56, 57, 58, 64, 65, 66, 72]  # 3 of c7, 3 of c8, 1 of c9
    np.save("rows.npy", rows)
    said = json.loads(ppa("adapt", "--phi", "runs/phi2", "--support-store", "new.zarr", "--rows", "rows.npy",
                          "--json").stdout)  # fmt: skip
    fits = {fit["shots"]: fit for fit in json.loads(Path("runs/phi2/calibration.json").read_text())["calibrations"]}
    assert (said["categories"], said["learnt"], said["examples"]) == (10, ["c7", "c8", "c9"], 7)
    assert (said["novel_bias"], said["aggregate"]) == (fits[3]["novel_bias"], fits[3]["aggregate"])
    found = json.loads(ppa("predict", "--store", "new.zarr", "--split", "val", "--json").stdout)
    labels = np.repeat(CLASSES, 4)
    right = np.mean([one["top"][0]["category"] == label for one, label in zip(found, labels, strict=True)])
    assert right > 0.5  # of ten categories, three of them never trained on
    ppa("categories", "rename", "c9", "okapi")
    ppa("categories", "remove", "c8")
    assert json.loads(ppa("categories", "list", "--json").stdout)["novel"] == {"c7": 3, "okapi": 1}
    result = json.loads(ppa("export", "--onnx", "c.onnx", "--torch", "c.pt", "--json").stdout)
    assert result["categories"] == 9
    assert json.loads(Path("c.json").read_text())["categories"] == [*CLASSES[:7], "c7", "okapi"]


def test_rows_of_a_store_of_unequal_numbers(here: Path, ppa: Run) -> None:
    said = ppa("adapt", "--phi", "runs/phi2", *ROWS).stdout
    assert "classifier.safetensors: learnt 3 categories from 25 examples in " in said
    assert "10 categories, max of the examples, novel bias 0" in said
    found = load_classifier(Path("classifier.safetensors"))
    assert {name: len(rows) for name, rows in found.support.items()} == {"c7": 11, "c8": 12, "c9": 2}
    train = actstore.open("x.zarr")["train"]
    np.testing.assert_array_equal(found.support["c9"], train.take([108, 109]))
    assert found.about["content"] == train.content


def test_more_examples_and_more_categories_later(here: Path, ppa: Run, learnt: Path) -> None:
    other = ("--classifier", learnt, "--support-store", "x.zarr", "--out", "more.safetensors")
    assert "category 'c9' exists already" in ppa("adapt", *other, "--class", "c9", code=1).stderr
    ppa("adapt", *other, "--rows", "110:112", "--extend", "--novel-bias", 1.5, "--aggregate", "mean")
    more = load_classifier(Path("more.safetensors"))
    assert (len(more.support["c9"]), more.novel_bias, more.aggregate) == (4, 1.5, "mean")
    assert len(load_classifier(learnt).support["c9"]) == 2


def test_predictions_of_rows(here: Path, ppa: Run, learnt: Path) -> None:
    found = json.loads(ppa("predict", "--store", "x.zarr", "--split", "val", "--rows", "3:6", "--json").stdout)
    train = actstore.open("x.zarr")["val"]
    expected = load_classifier(learnt).predict(train.to_torch([3, 4, 5]).float())
    for one, row, line in zip(found, (3, 4, 5), expected, strict=True):
        assert one["image"] == train.ids[row]
        assert [(each["category"], each["probability"]) for each in one["top"]] == line
    shown = ppa("predict", "--store", "x.zarr", "--split", "val", "--rows", "3:6", "--top", 2).stdout
    assert len(shown.splitlines()) == 1 + 3
    assert shown.splitlines()[1].split()[:2] == [train.ids[3], expected[0][0][0]]


def test_categories(here: Path, ppa: Run, learnt: Path) -> None:
    shown = ppa("categories", "list").stdout
    assert "7 base categories (c0 … c6)" in shown
    assert "c8           12" in shown
    ppa("categories", "rename", "c8", "short-tailed scrub wallaby")
    ppa("categories", "remove", "c7", "c9")
    result = json.loads(ppa("categories", "list", "--json").stdout)
    assert result["novel"] == {"short-tailed scrub wallaby": 12}
    before = learnt.read_bytes()
    refused = ppa("categories", "remove", "short-tailed scrub wallaby", "c0", code=1)
    assert "'c0' is a base category" in refused.stderr
    assert learnt.read_bytes() == before  # all of them, or none


def test_exports(here: Path, ppa: Run, learnt: Path) -> None:
    import onnxruntime

    said = ppa("export", "--onnx", "c.onnx", "--torch", "linear.pt").stdout
    assert said.startswith("linear.pt and c.onnx: 32 rows for 10 categories; onnxruntime agrees within ")
    rows = actstore.open("x.zarr")["val"].to_torch().float()
    expected = [[name for name, _ in line] for line in load_classifier(learnt).predict(rows)]
    session = onnxruntime.InferenceSession("c.onnx", providers=["CPUExecutionProvider"])
    (scores,) = session.run(["scores"], {"activations": rows.numpy()})
    names = json.loads(Path("linear.json").read_text())["categories"]
    assert [[names[place] for place in line] for line in np.argsort(-scores, 1, kind="stable")[:, :5]] == expected
    assert set(torch.load("linear.pt", weights_only=True)) == {"weight", "bias", "row_category"}


def test_rows_of_another_network_are_refused(here: Path, ppa: Run, learnt: Path, make_activations: Any) -> None:
    """Where both say which they are from; the classifier of an imported store does not."""
    other = actstore.create("o.zarr", classes=CLASSES, dim=16, provenance={"weights_sha256": "b", "backbone": "wide"})
    with other.writer("train") as writer:
        writer.append(*make_activations(2, 3))
    ppa("predict", "--store", "o.zarr", "--rows", "0:2")
    classifier = load_classifier(learnt)
    classifier.about["network"] = {"weights_sha256": "a", "backbone": "small"}
    from predictor.classifier.classifier_file import save_classifier

    save_classifier(learnt, classifier)
    message = "o.zarr holds activations of another network (wide) than the classifier's (small)"
    assert message in ppa("predict", "--store", "o.zarr", code=1).stderr
    adapt = ("adapt", "--classifier", learnt, "--support-store", "o.zarr", "--extend")
    assert message in ppa(*adapt, code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["adapt", *ROWS], 1, "classifier.safetensors exists; add to it with --classifier"),
        (["adapt", "--phi", "runs/phi2", "--classifier", "c.safetensors", *ROWS], 2, "give one of them"),
        (["adapt", "--phi", "runs/phi2"], 2, "examples come from --support DIR, or from --support-store STORE"),
        (
            ["adapt", *NEW, "--phi", "runs/phi2", "--support-store", "x.zarr", "--class", "c1"],
            1,
            "'c1' is a base category",
        ),
        (
            ["adapt", *NEW, "--phi", "runs/phi2", "--support-store", "x.zarr", "--class", "emu"],
            1,
            "no class is named 'emu'",
        ),
        (["adapt", *NEW, "--phi", "runs/phi2", "--support-store", "x.zarr", "--rows", "5:5"], 1, "no row"),
        (
            ["adapt", *NEW, "--phi", "runs/phi2", "--store", "x.zarr", "--support-store", "narrow.zarr"],
            1,
            "expected activations (n, 16), got (1, 8)",
        ),
        (["adapt", *NEW, "--phi", "runs/phi2", "--store", "narrow.zarr", *ROWS], 1, "have 8; train a phi for them"),
        (["adapt", *NEW, "--phi", "runs/phi2", *ROWS, "--novel-bias", "inf"], 1, "must be a finite number, got inf"),
        (["adapt", "--classifier", "absent", *ROWS], 1, "no classifier at absent; make one with `ppa adapt"),
        (["adapt", "--classifier", "runs/phi2/model.safetensors", *ROWS], 1, "must be a classifier, got a training"),
        (["predict"], 2, "give images to classify, or rows of a store with --store: one of the two"),
        (["predict", "x.jpg", "--store", "x.zarr"], 2, "one of the two"),
        (["predict", "--store", "narrow.zarr"], 1, "expected activations (n, 16), got (10, 8)"),
        (["predict", "--store", "x.zarr", "--top", 0], 2, "is not in the range"),
        (["predict", "--store", "x.zarr", "--classifier", "absent"], 1, "no classifier at absent"),
        (["predict", "absent.jpg"], 1, "no such image or folder: absent.jpg"),
        (["predict", "split.json"], 1, "imported"),
        (["categories", "list", "c7"], 2, "list takes no names, got c7"),
        (["categories", "remove"], 2, "name the categories to remove"),
        (["categories", "remove", "emu"], 1, "no added category is named 'emu'; there are: c7, c8, c9"),
        (["categories", "rename", "c7"], 2, "got: c7"),
        (["categories", "rename", "c7", "c8"], 1, "cannot rename 'c7': 'c8' is taken"),
        (["categories", "add", "c7"], 2, "'add' is not one of"),
        (["export"], 2, "say what to write: --torch FILE, --onnx FILE, or both"),
        (["export", "--onnx", "model.pt"], 2, "must end in .onnx, got model.pt"),
        (["export", "--torch", "model.onnx"], 2, "model.onnx"),
        (["export", "--torch", "names.json"], 1, "names.json is where the category names go"),
    ],
)
def test_bad_input(
    here: Path, ppa: Run, learnt: Path, make_activations: Any, arguments: list[Any], code: int, message: str
) -> None:
    before = learnt.read_bytes()
    if "narrow.zarr" in arguments:
        actstore.from_arrays(Path("narrow.zarr"), {"train": make_activations(1, 9, dim=8)}, classes=CLASSES)
    assert message in ppa(*arguments, code=code).stderr
    assert learnt.read_bytes() == before


def test_rows_without_labels_are_no_support(here: Path, ppa: Run, make_activations: Any) -> None:
    rows, labels = make_activations(1, 3)
    actstore.from_arrays(Path("u.zarr"), {"train": (rows, np.where(labels == 4, -1, labels))}, classes=CLASSES)
    arguments = ("adapt", "--phi", "runs/phi2", "--store", "x.zarr", "--support-store", "u.zarr", "--rows", "3:6")
    assert "a row without a label" in ppa(*arguments, code=1).stderr


class Malicious:
    """A pickle that leaves a file behind when it is opened as one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_malicious_pickle_as_a_classifier_is_not_run(here: Path, ppa: Run) -> None:
    Path("classifier.safetensors").write_bytes(pickle.dumps(Malicious(here / "it ran")))
    for command in (
        ("predict", "--store", "x.zarr"), ("categories", "list"), ("export", "--torch", "x.pt"),
        ("adapt", "--classifier", "classifier.safetensors", *ROWS),
        ("calibrate", "--classifier", "classifier.safetensors", "--novel-bias", 1),
    ):  # fmt: skip
        assert "classifier.safetensors is damaged or no safetensors file" in ppa(*command, code=1).stderr
    assert not Path("it ran").exists()
