from __future__ import annotations

import csv
import io
import json
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import actstore

Run = Callable[..., Any]
FAST = ("--draws", 3, "--shots", "1,2")
CLASSES = [f"c{number}" for number in range(10)]


class Malicious:
    """A pickle that leaves a file behind when it is opened as one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.fixture
def as_large_as_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's ten categories, as if the paper's figures were of as many."""
    monkeypatch.setattr("predictor.protocol.setting.PAPER_CATEGORIES", 10)


@pytest.mark.usefixtures("as_large_as_the_paper")
def test_a_table_in_three_forms(here: Path, ppa: Run) -> None:
    arguments = ("eval", "--phi", "runs/phi1", "--phi", "runs/phi2", *FAST)
    found = json.loads(ppa(*arguments, "--json", "--out", "out/t.json").stdout)
    assert json.loads(Path("out/t.json").read_text()) == found
    names = [(row["method"], row["d_large"]) for row in found[:6]]
    assert names == [("NN+Cosine", "100%"), ("NN+Cosine", "10%"), ("NN+Cosine", "1%"), ("Nearest class mean", "100%"),
                     ("phi1", "100%"), ("phi2", "100%")]  # fmt: skip
    assert [row["shots"] for row in found] == ["1"] * 6 + ["2"] * 6
    assert {row["draws"] for row in found} == {3}
    assert (found[5]["paper_top1_large"], found[5]["paper_top1_few"]) == (74.17, 21.58)
    assert all(0 <= row[name] <= 100 for row in found for name in ("top1_large", "top5_few", "ausuc", "joint"))

    ppa(*arguments, "--out", "t.csv")
    text = Path("t.csv").read_text()
    assert text.count("\n") == 13  # a header, and no empty line at the end
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [line["method"] for line in lines] == [row["method"] for row in found]
    assert [float(line["top1_few"]) for line in lines] == [row["top1_few"] for row in found]

    shown = ppa(*arguments, "--out", "t.md", "--wide").stdout
    assert Path("t.md").read_text() == shown
    assert len(shown.splitlines()) == 2 + 12 + 5 + 10 + 2  # then the differences to phi2, of all others, and a note
    assert f"| phi2 | 100% | 1 | {found[5]['top1_large']:.2f} ± " in shown


def test_a_method_alone_has_the_figures_it_has_in_company(here: Path, ppa: Run) -> None:
    together = json.loads(ppa("eval", "--phi", "runs/phi1", "--phi", "runs/phi2", *FAST, "--json").stdout)
    alone = json.loads(ppa("eval", "--phi", "runs/phi2", "--methods", "none", *FAST, "--json").stdout)
    assert alone == [row for row in together if row["method"] == "phi2"]


def test_every_search_has_the_same_table(here: Path, ppa: Run) -> None:
    """Triplet's rows are embedded once, which is said; a bounded search without an index names the command."""
    ppa("baseline", "triplet", "--steps", 3, "--out", "runs/triplet")
    arguments = ("eval", "--methods", "nn,triplet", *FAST, "--json")
    first = ppa(*arguments, "--search", "exact")
    assert "once" in first.stderr
    for search in ("auto", "faiss"):
        again = ppa(*arguments, "--search", search, "--device", "cpu")
        assert json.loads(again.stdout) == json.loads(first.stdout)
        assert "embedding" not in again.stderr
    refused = ppa(*arguments, "--search", "bounded", code=1)
    assert "actstore index" in refused.stderr


def test_calibrated_rows_beside_the_others(here: Path, ppa: Run) -> None:
    ppa("calibrate", "--phi", "runs/phi2", "--tasks", 3, "--shots", 1)
    arguments = ("eval", "--phi", "runs/phi2", "--methods", "none", *FAST, "--json")
    plain, calibrated, *_ = json.loads(ppa(*arguments).stdout)
    assert (plain["method"], calibrated["method"]) == ("phi2", "phi2, calibrated")
    assert (calibrated["key"], calibrated["variant"]) == ("phi2", "calibrated")
    assert calibrated["top1_large"] <= plain["top1_large"]
    assert calibrated["ausuc"] == plain["ausuc"]  # the area does not depend on the constant
    (fit,) = json.loads(Path("runs/phi2/calibration.json").read_text())["calibrations"]
    by_hand = json.loads(ppa(*arguments, "--novel-bias", fit["novel_bias"]).stdout)
    assert len(by_hand) == 2
    assert by_hand[0]["top1_few"] == calibrated["top1_few"]


def test_the_mean_of_the_examples(here: Path, ppa: Run) -> None:
    arguments = ("eval", "--phi", "runs/phi2", "--methods", "none", *FAST, "--json")
    most, mean = (json.loads(ppa(*arguments, "--aggregate", way).stdout) for way in ("max", "mean"))
    assert [row["method"] for row in (most[0], mean[0])] == ["phi2", "phi2, mean"]
    assert [(row["key"], row["variant"]) for row in (most[0], mean[0])] == [("phi2", ""), ("phi2", "mean")]
    plain = {"method": "phi2", "variant": ""}
    assert most[0] == mean[0] | plain  # of one example
    assert most[1] != mean[1] | plain


def test_baselines_without_any_phi(here: Path, ppa: Run) -> None:
    found = json.loads(ppa("eval", "--methods", "nn", "--shots", "1", "--draws", 1, "--json").stdout)
    assert [row["method"] for row in found] == ["NN+Cosine"] * 3
    assert found[0]["top1_few_ci95"] is None  # a single draw has no interval


def seen_store(
    path: Path, make_activations: Any, trained: list[str], splits: tuple[str, ...] = ("train", "val")
) -> Path:
    store = actstore.create(path, classes=CLASSES, dim=16, provenance={"trained_classes": trained})
    for number, name in enumerate(splits):
        with store.writer(name) as writer:
            writer.append(*make_activations(6 - number, number))
    return path


def test_a_warning_where_the_backbone_saw_a_novel_class(here: Path, ppa: Run, make_activations: Any) -> None:
    seen_store(Path("seen.zarr"), make_activations, ["c0", "c8", "c9"])
    arguments = ("eval", "--store", "seen.zarr", "--methods", "nn", *FAST)
    warning = "WARNING: the backbone was trained on novel class 'c8' and 1 more; these are no few-shot results"
    assert ppa(*arguments, "--out", "t.md").stdout.splitlines()[-1] == warning
    assert Path("t.md").read_text().splitlines()[-1] == warning
    found = json.loads(ppa(*arguments, "--out", "t.csv", "--json").stdout)
    assert {row["warning"] for row in found} == {warning}
    assert {line["warning"] for line in csv.DictReader(io.StringIO(Path("t.csv").read_text()))} == {warning}
    ppa(*arguments, "--out", "t.json")
    assert {row["warning"] for row in json.loads(Path("t.json").read_text())} == {warning}


def test_no_warning_where_it_saw_none(here: Path, ppa: Run, make_activations: Any) -> None:
    seen_store(Path("fair.zarr"), make_activations, ["c0", "c1"])
    assert "WARNING" not in ppa("eval", "--store", "fair.zarr", "--methods", "nn", *FAST).output


def test_a_network_of_unknown_training_may_have_seen_the_novel_classes(
    here: Path, ppa: Run, make_activations: Any
) -> None:
    splits = {"train": make_activations(6, 0), "val": make_activations(5, 1)}
    actstore.from_arrays(Path("unknown.zarr"), splits, classes=CLASSES)
    arguments = ("eval", "--store", "unknown.zarr", "--methods", "nn", *FAST)
    assert "it may have seen the novel categories" in ppa(*arguments, "--out", "t.md").stdout.splitlines()[-1]
    assert "may have seen" in Path("t.md").read_text()
    assert all("may have seen" in row["warning"] for row in json.loads(ppa(*arguments, "--json").stdout))


@pytest.mark.usefixtures("as_large_as_the_paper")
def test_ten_views_stand_beside_no_figure_of_one(here: Path, ppa: Run, make_activations: Any) -> None:
    for views in (1, 10):
        path = seen_store(Path(f"{views}.zarr"), make_activations, ["c0"])
        actstore.open(path).add_provenance(views=views)
        (row, *_) = json.loads(ppa("eval", "--store", path, "--methods", "nn", *FAST, "--json").stdout)
        assert (row["paper_top1_few"] is None) == (views == 10)
        assert ("10 views of each image" in row.get("warning", "")) == (views == 10)


@pytest.mark.usefixtures("as_large_as_the_paper")
def test_child_says_which_share_of_d_large_it_read(
    here: Path, ppa: Run, make_activations: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from baselines import large_sample

    ppa("baseline", "head", "--store", "x.zarr", "--split-file", "split.json", "--epochs", 1)
    arguments = ("eval", "--methods", "child,finetune", *FAST, "--json")
    assert {row["d_large"] for row in json.loads(ppa(*arguments).stdout)} == {"100%"}
    few = partial(large_sample.LargeSample.of_base, most_rows=42)  # of 84
    monkeypatch.setattr(large_sample.LargeSample, "of_base", few)
    rows = json.loads(ppa(*arguments).stdout)
    assert {row["d_large"] for row in rows} == {"50%"}
    assert {row["paper_top1_few"] for row in rows if row["shots"] == "1"} == {2.90, 2.82}  # of all of D_large


def test_a_store_without_means_says_that_it_computes_them(here: Path, ppa: Run, make_activations: Any) -> None:
    seen_store(Path("new.zarr"), make_activations, [])
    arguments = ("eval", "--store", "new.zarr", *FAST, "--methods")
    ppa("baseline", "triplet", "--store", "new.zarr", "--steps", 2)
    assert "computing the class means" not in ppa(*arguments, "nn,triplet").stderr  # nothing needs them
    assert "computing the class means of new.zarr/train (once)" in ppa(*arguments, "class-mean").stderr
    assert "computing the class means" not in ppa(*arguments, "class-mean").stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--shots", "0"], 2, "--shots must be whole numbers from 1 on with commas, such as 1,2,3, got '0'"),
        (["--shots", "1,,2"], 2, "--shots must be whole numbers"),
        (["--shots", "13"], 1, "has 12 rows, too few for 13 shots"),
        (["--draws", "0"], 2, "is not in the range"),
        (["--methods", "none"], 2, "nothing to measure"),
        (["--methods", "class-mean", "--novel-bias", "1"], 2, "--novel-bias"),
        (["--methods", "svm"], 2, "no method 'svm'; known: all, nn"),
        (["--methods", "fine-tuned"], 2, "did you mean finetune?"),
        (["--out", "t.html"], 2, "--out must end in .md, .csv or .json"),
        (["--test-split", "train"], 1, "support and test images both come from split 'train'"),
        (["--test-split", "absent"], 1, "absent"),
        (["--store", "one.zarr"], 1, "one.zarr has no split val or test to take test images from; it has train"),
        (["--store", "partial.zarr"], 1, "holds no row of a novel class to test on"),
        (["--phi", "runs/absent"], 1, "no trained phi at runs/absent"),
        (["--phi", "runs/phi2", "--store", "seen.zarr"], 1, "was trained on another store"),
        (["--phi", "runs/phi2", "--store", "narrow.zarr"], 1, "have 8; train a phi for them"),
        (["--phi", "runs/phi2", "--split-file", "other.json"], 1, "was trained with other categories"),
        (["--split-file", "all.json"], 1, "names no novel class"),
    ],
)
def test_bad_input(here: Path, ppa: Run, make_activations: Any, arguments: list[Any], code: int, message: str) -> None:
    if "one.zarr" in arguments:
        seen_store(Path("one.zarr"), make_activations, [], ("train",))
    if "seen.zarr" in arguments:
        seen_store(Path("seen.zarr"), make_activations, [])
    rows, labels = make_activations(3, 9, dim=8)
    splits = {"train": (rows, labels), "val": (rows[labels < 7], labels[labels < 7])}
    for name in {"partial.zarr", "narrow.zarr"} & set(arguments):
        actstore.from_arrays(Path(name), splits, classes=CLASSES)
    Path("other.json").write_text(json.dumps({"base": CLASSES[:5], "novel": CLASSES[5:]}))
    Path("all.json").write_text(json.dumps({"base": CLASSES}))
    given = ("--methods", "nn", *FAST, *arguments)
    assert message in ppa("eval", *given, code=code).stderr
    assert not Path("t.html").exists()


def test_a_malicious_pickle_is_not_run(here: Path, ppa: Run) -> None:
    shutil.rmtree("runs/phi2")
    Path("runs/phi2").mkdir()
    Path("runs/phi2/model.safetensors").write_bytes(pickle.dumps(Malicious(here / "it ran")))
    for command in (("eval",), ("calibrate",), ("adapt", "--support-store", "x.zarr"), ("analyse",)):
        result = ppa(*command, "--phi", "runs/phi2", code=1)
        assert "runs/phi2/model.safetensors is damaged or no safetensors file" in result.stderr
    assert not Path("it ran").exists()


def test_a_damaged_calibration_is_named(here: Path, ppa: Run) -> None:
    Path("runs/phi2/calibration.json").write_text("[{}]")
    assert "runs/phi2/calibration.json is damaged" in ppa("eval", "--phi", "runs/phi2", *FAST, code=1).stderr


def test_a_split_file_with_other_categories_than_those_of_phi_is_said(here: Path, ppa: Run) -> None:
    arguments = ("eval", "--phi", "runs/phi2", "--methods", "none", *FAST)
    assert "others" not in ppa(*arguments).stderr
    ppa("split", "--store", "x.zarr", "--novel-share", 0.5, "--force")
    assert "trained with; split.json of this folder names others" in ppa(*arguments).stderr
