"""`ppa episodes` and the task learners of `ppa baseline`, as a user runs them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest
import torch

import actstore
from actstore.images.opening import open_images
from cli.ppa import main

CLASSES = [f"c{number}" for number in range(10)]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten classes around centres of their own, in two splits; the last six are novel."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    centres = random.random((10, 16))
    splits = {}
    for split, count in (("train", 12), ("val", 4)):
        labels = np.repeat(np.arange(10), count)
        splits[split] = (np.abs(centres[labels] + 0.3 * random.standard_normal((len(labels), 16))), labels)
    actstore.from_arrays(tmp_path / "x.zarr", splits, classes=CLASSES).add_provenance(trained_classes=CLASSES[:4])
    Path("split.json").write_text(json.dumps({"base": CLASSES[:4], "novel": CLASSES[4:]}))
    return tmp_path / "x.zarr"


def run(*arguments: Any, code: int = 0) -> click.testing.Result:
    result = click.testing.CliRunner().invoke(main, [str(one) for one in arguments])
    assert result.exit_code == code, result.output
    return result


def test_a_table_beside_the_papers(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "paper_one_shot" not in run("episodes", "--tasks", 3, "--json").stdout  # of mini-ImageNet, which this is not
    monkeypatch.setattr("actstore.backbones.network.imagenet_wnids", lambda: tuple(CLASSES))
    rows = json.loads(run("episodes", "--tasks", 30, "--json").stdout)
    by_method = {row["method"]: row for row in rows}
    nearest = by_method["Nearest Neighbor"]
    assert (nearest["paper_one_shot"], nearest["paper_five_shot_ci95"]) == (41.08, 0.65)
    assert 20 < nearest["one_shot"] < nearest["five_shot"] <= 100
    assert nearest["one_shot"] == by_method["Nearest class mean"]["one_shot"]  # one example is its own mean
    assert "one_shot" not in by_method["Ours-WRN"]
    assert by_method["Ours-WRN"]["paper_one_shot"] == 59.6
    text = run("episodes", "--tasks", 30).stdout
    assert f"| {nearest['one_shot']:.2f} ± {nearest['one_shot_ci95']:.2f}" in text
    assert "over 30 tasks" in text


def test_it_is_written_as_markdown_csv_and_json(store: Path) -> None:
    methods = ("--methods", "class-mean,finetune,simple-shot")
    given = ("episodes", "--tasks", 5, "--shots", "3", *methods, "--queries", 2)
    for name in ("t.md", "t.csv", "t.json"):
        run(*given, "--out", name)
    rows = json.loads(Path("t.json").read_text())
    assert [row["method"] for row in rows[:3]] == [
        "Nearest class mean", "Fine-Tuned Baseline", "SimpleShot (centred class mean)"
    ]  # fmt: skip
    with Path("t.csv").open(newline="") as file:
        assert [row["3_shot"] for row in csv.DictReader(file)][:2] == [str(row["3_shot"]) for row in rows[:2]]
    assert Path("t.md").read_text().startswith("| method ")
    assert "must end in .md, .csv or .json" in run(*given, "--out", "t.txt", code=2).stderr


def test_splits_are_pooled_unless_one_is_named(store: Path) -> None:
    """16 rows of a class: 15 shots leave a query; train alone has 12."""
    run("episodes", "--tasks", 2, "--shots", 15)
    refused = run("episodes", "--tasks", 2, "--shots", 15, "--split", "train", code=1)
    assert "has 12 rows, too few for 15 shots" in refused.stderr


def test_a_backbone_that_saw_a_novel_class_is_warned_of(store: Path) -> None:
    actstore.open(store).add_provenance(trained_classes=["c0", "c7"])
    result = run("episodes", "--tasks", 2)
    assert "the backbone was trained on novel class 'c7'" in result.stdout
    assert "c7" in json.loads(run("episodes", "--tasks", 2, "--json").stdout)[0]["warning"]


def test_an_unknown_training_and_ten_views_are_said(store: Path) -> None:
    actstore.open(store).add_provenance(trained_classes=None)
    assert "it may have seen the novel categories" in run("episodes", "--tasks", 2).stdout
    assert "may have seen" in json.loads(run("episodes", "--tasks", 2, "--json").stdout)[0]["warning"]
    actstore.open(store).add_provenance(views=10)
    rows = json.loads(run("episodes", "--tasks", 2, "--json").stdout)
    assert not any(key.startswith("paper_") for row in rows for key in row)
    assert "10 views of each image" in rows[0]["warning"]


def test_a_phi_that_was_trained_on_a_novel_category_is_refused(store: Path) -> None:
    run("train", "--phi", "phi1", "--epochs", 1, "--batches", 2, "--out", "runs/phi1")
    run("episodes", "--tasks", 2, "--phi", "runs/phi1")
    Path("other.json").write_text(json.dumps({"base": CLASSES[4:], "novel": CLASSES[:4]}))
    refused = run("episodes", "--tasks", 2, "--way", 3, "--phi", "runs/phi1", "--split-file", "other.json", code=1)
    assert "runs/phi1 was trained on class 'c0' and 3 more, which this split calls novel" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--shots", "one"], 2, "--shots must be whole numbers"),
        (["--methods", "svm"], 2, "no method 'svm'; known: nn"),
        (["--methods", "nn,imprinting"], 2, "did you mean imprint?"),
        (["--methods", "none,nn"], 2, "none stands for no method"),
        (["--methods", "none"], 2, "nothing to measure"),
        (["--way", 7], 1, "7-way tasks need as many categories, got 6"),
        (["--split", "test"], 1, "has no split 'test'"),
        (["--learner", "runs/maml"], 2, "say where they are with --images"),
        (["--images", "glyphs:20x5x0", "--split-file", "none.json", "--learner", "x"], 1, "no split file at none.json"),
        (["--phi", "runs/phi2"], 1, "no trained phi at"),
    ],
)
def test_errors_are_one_clear_line(store: Path, arguments: list[Any], code: int, expected: str) -> None:
    result = run("episodes", *arguments, code=code)
    assert expected in result.stderr
    assert "Traceback" not in result.output


def test_learners_are_trained_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = open_images("glyphs:12x4x1")["train"].classes
    Path("split.json").write_text(json.dumps({"base": names[:6], "novel": names[6:]}))
    small = ("--images", "glyphs:12x4x1", "--image-size", 16, "--width", 4, "--steps", 2, "--queries", 2)
    trained = json.loads(run("baseline", "matching", *small, "--json").stdout)
    assert (trained["baseline"], trained["folder"], trained["steps"]) == ("matching", "runs/matching", 2)
    run("baseline", "maml", *small, "--order", "first", "--inner-steps", 1)
    identity = json.loads(Path("runs/maml/model.json").read_text())["identity"]
    assert identity["config"]["options"] == {"order": "first", "inner_steps": 1}
    assert len(identity["source"]["classes"]) == 6
    assert Path("runs/maml/log.csv").read_text().startswith("step,loss,accuracy,seconds")
    learners = ("--learner", "runs/matching", "--learner", "runs/maml", "--tasks", 4, "--queries", 2, "--shots", 1)
    rows = json.loads(run("episodes", "--images", "glyphs:12x4x1", *learners, "--json").stdout)
    assert [row["method"] for row in rows if "one_shot" in row] == ["Matching Network", "MAML"]
    options = json.loads(Path("runs/matching/model.json").read_text())["identity"]["config"]["options"]
    assert options == {"full_context": True}  # as the published row beside it
    run("baseline", "matching", *small, "--no-full-context", "--out", "runs/plain")
    plain = ("--learner", "runs/plain", "--tasks", 4, "--queries", 2, "--shots", 1, "--json")
    (row, *_) = json.loads(run("episodes", "--images", "glyphs:12x4x1", *plain).stdout)
    assert row["method"] == "Matching Network (no full context)"
    assert "paper_one_shot" not in row
    Path("split.json").write_text(json.dumps({"base": names[6:], "novel": names[:6]}))
    refused = run("episodes", "--images", "glyphs:12x4x1", *learners, code=1)
    assert "runs/matching was trained on class" in refused.stderr
    refused = run("baseline", "prototypical", *small, "--order", "first", code=2)
    assert "--order does not apply to the baseline prototypical" in refused.stderr


def test_a_learner_of_another_way_is_refused() -> None:

    from actstore.errors import InvalidInputError
    from baselines.learners import Maml

    learner = Maml(8, 4, 0, way=2)
    pixels = torch.zeros(1, 3, 1, 8, 8, 3, dtype=torch.uint8)
    with pytest.raises(InvalidInputError, match="trained for 2-way tasks and can do no other, got 3-way"):
        learner.episode_scores(pixels, pixels[:, 0])
