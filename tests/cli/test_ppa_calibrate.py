from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import actstore
from predictor.classifier.classifier_file import load_classifier

Run = Callable[..., Any]
FAST = ("--tasks", 3, "--shots", "1,2")


@pytest.fixture
def classifier(here: Path, ppa: Run) -> Path:
    """Two novel categories of 12 and 2 examples."""
    ppa(
        "adapt", "--phi", "runs/phi2", "--support-store", "x.zarr", "--class", "c8", "--class", "c9", "--rows", "96:110"
    )
    return here / "classifier.safetensors"


def test_it_is_kept_beside_phi_with_a_figure(here: Path, ppa: Run) -> None:
    fits = json.loads(ppa("calibrate", "--phi", "runs/phi2", *FAST, "--json").stdout)
    assert [fit["shots"] for fit in fits] == [1, 2]
    assert json.loads(Path("runs/phi2/calibration.json").read_text())["calibrations"] == fits
    assert Path("runs/phi2/calibration.png").read_bytes().startswith(b"\x89PNG")
    assert all(fit["harmonic_mean"] >= fit["uncalibrated"] for fit in fits)
    again = ppa("calibrate", "--phi", "runs/phi2", *FAST, code=1).stderr
    assert "runs/phi2/calibration.json exists; replace it with --force" in again
    shown = ppa("calibrate", "--phi", "runs/phi2/model.safetensors", *FAST, "--force")
    assert "harmonic mean without" in shown.stdout
    assert "fitted on 3 tasks of base categories as stand-ins" in shown.stdout


def test_other_numbers_of_shots_need_no_force_and_leave_what_is_there(here: Path, ppa: Run) -> None:
    def kept(folder: str) -> dict[int, Any]:
        fits = json.loads(Path(folder, "calibration.json").read_text())["calibrations"]
        return {fit["shots"]: fit for fit in fits}

    for words, folder in ((("--phi", "runs/phi2"), "runs/phi2"), (("--methods", "class-mean"), "runs")):
        ppa("calibrate", *words, "--tasks", 2, "--shots", 1)
        before = kept(folder)
        told = ppa("eval", "--phi", "runs/phi2", "--methods", "class-mean", "--shots", "1,3", "--draws", 2).stdout
        advice = f"ppa calibrate {' '.join(words)} --shots 3"
        assert f"no constant was fitted for 3 shots: {'phi2' if words[0] == '--phi' else 'Nearest class mean'}" in told
        assert f"`{advice}`, fits it" in told
        assert "in place of" not in ppa(*advice.split()[1:], "--tasks", 2).stderr
        assert kept(folder) == {**before, 3: kept(folder)[3]}
        for shots in ("3", "1,2"):
            refused = ppa("calibrate", *words, "--tasks", 2, "--shots", shots, code=1).stderr
            assert f"{folder}/calibration.json exists; replace" in refused
        ppa("calibrate", *words, "--tasks", 2, "--shots", 3, "--force")
        assert kept(folder).keys() == {1, 3}


@pytest.mark.parametrize("words", [("--phi", "runs/phi2"), ("--methods", "class-mean")])
def test_a_damaged_file_is_made_anew_with_force(here: Path, ppa: Run, words: tuple[str, str]) -> None:
    file = Path("runs/phi2/calibration.json" if words[0] == "--phi" else "runs/calibration.json")
    file.write_text("[{}]")
    assert f"{file} exists; replace" in ppa("calibrate", *words, "--tasks", 2, "--shots", 1, code=1).stderr
    told = ppa("calibrate", *words, "--tasks", 2, "--shots", 1, "--force").stderr
    assert f"{file} was damaged" in told
    assert len(json.loads(file.read_text())["calibrations"]) == 1


def test_of_a_networks_own_classifier_nothing_is_kept(here: Path, ppa: Run, make_activations: Any) -> None:
    """Base categories have 3 rows, novel ones 12: their constant is fitted for 1 and 2 shots."""
    ppa("baseline", "head", "--store", "x.zarr", "--split-file", "split.json", "--epochs", 1)
    head = ("--base", "head", "--head", "runs/head/head.safetensors")
    files = sorted(Path("runs").rglob("*"))
    assert "kept nowhere" in ppa("calibrate", *head, *FAST).stdout.splitlines()[-1]
    assert sorted(Path("runs").rglob("*")) == files
    (rows, labels), base = make_activations(12, 0), json.loads(Path("split.json").read_text())["base"]
    index = {f"c{number}": number for number in range(10)}
    few = sorted(row for name in base for row in (labels == index[name]).nonzero()[0][3:].tolist())
    taken = [row for row in range(len(rows)) if row not in set(few)]
    splits = {"train": (rows[taken], labels[taken]), "val": make_activations(4, 1)}
    actstore.from_arrays(Path("y.zarr"), splits, classes=list(index))
    found = ppa("eval", "--store", "y.zarr", *head, "--methods", "none", "--draws", 2)
    assert "no constant was fitted for 3 shots and 5 shots: Own classifier" in found.stdout
    assert "shots:" not in found.stderr


@pytest.fixture(autouse=True)
def holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants that were fitted on so few rows are used all the same, so that the tables show them."""
    monkeypatch.setattr("predictor.protocol.calibration.MOST_SHORTFALL", 99)


def test_baselines_are_calibrated_by_the_same_procedure(here: Path, ppa: Run, make_activations: Any) -> None:
    """On rows of val, which are then left out of the test; each calibrated row says what its constant was fitted on."""
    splits = {"train": make_activations(12, 0), "val": make_activations(20, 1)}
    store = actstore.from_arrays(Path("y.zarr"), splits, classes=[f"c{number}" for number in range(10)])
    given = ("--store", store.path, "--split-file", "split.json")
    ppa("baseline", "head", *given, "--epochs", 1)
    ppa("baseline", "triplet", *given, "--steps", 2)
    ppa("train", "--phi", "phi2", *given, "--epochs", 1, "--batches", 2, "--out", "runs/y")
    plain = json.loads(ppa("eval", *given, "--methods", "class-mean", "--draws", 2, "--shots", 1, "--json").stdout)
    assert plain[0]["fitted_on"] == ""
    found = json.loads(ppa("calibrate", "--methods", "all", *given, *FAST, "--json").stdout)
    assert {one["key"] for one in found} == {
        "nn",
        "triplet",
        "child",
        "imprint",
        "imprint-base-rows",
        "class-mean",
        "simple-shot",
        "ridge",
        "tip-adapter",
    }
    assert {(one["key"], one["share"], one["shots"]) for one in found} >= {("nn", "1%", 2), ("triplet", "100%", 1)}
    assert all(one["harmonic_mean"] >= one["uncalibrated"] for one in found)
    assert {one["held_out"] for one in found} == {0.2}
    again = ppa("calibrate", "--methods", "nn,class-mean", *given, code=1).stderr
    assert "calibration.json exists; replace the constants of class-mean, nn with --force" in again
    scores = "novel_scores = lambda self, queries, support: queries @ support.mean(1).T"
    Path("own_method.py").write_text(f"import predictor\n\n\nclass Own(predictor.Method):\n    {scores}\n")
    ppa("calibrate", "--methods", "own_method:Own", *given, *FAST)
    kept = json.loads(Path("runs/calibration.json").read_text())["calibrations"]
    assert {fit["key"] for fit in kept} == {*(one["key"] for one in found), "Own"}
    (fit, *_) = json.loads(ppa("calibrate", "--phi", "runs/y", "--store", store.path, *FAST, "--json").stdout)
    assert fit["held_out_of"] == store["val"].content
    arguments = ("eval", "--phi", "runs/y", "--store", store.path, "--methods", "nn,class-mean,child", "--shots", 1)
    rows = json.loads(ppa(*arguments, "--draws", 3, "--json").stdout)
    by_name = {(row["method"], row["d_large"]): row for row in rows}
    names = {"nn": "NN+Cosine", "class-mean": "Nearest class mean", "child": "Learning like a Child"}
    ours = [one for one in found if one["shots"] == 1 and one["key"] in names]
    assert rows[0]["warning"].count("calibration failed") == sum(bool(one["failed"]) for one in ours)
    for name, share in ((names[one["key"]], one["share"]) for one in ours if not one["failed"]):
        row, shifted = by_name[name, share], by_name[f"{name}, calibrated", share]
        assert shifted["ausuc"] == row["ausuc"]
        assert (shifted["variant"], shifted["paper_top1_few"]) == ("calibrated", None)
        assert "20% of the base rows of val" in shifted["fitted_on"]
        assert shifted["against"] == "phi2, calibrated"
    assert by_name["phi2, calibrated", "100%"]["against"] is None
    assert "28 rows of the base in val: no method is tested on those" in rows[0]["warning"]  # 4 of each of 7
    by_hand = json.loads(ppa(*arguments, "--draws", 3, "--novel-bias", 1, "--json").stdout)
    assert "Nearest class mean, calibrated" in {row["method"] for row in by_hand}
    assert "28 rows of the base in val" in by_hand[0]["warning"]
    gap = by_name["Nearest class mean", "100%"]["ausuc_difference"]
    means = [by_name[name, "100%"]["ausuc"] for name in ("Nearest class mean", "phi2, calibrated")]
    assert gap == pytest.approx(means[0] - means[1], abs=0.02)
    text = ppa(*arguments, "--draws", 3, "--wide").stdout
    assert "Less phi2, calibrated, on the same draws" in text
    assert "constant a: fitted on 3 tasks of base categories as stand-ins" in text
    ran = json.loads(ppa("sessions", *given, "--way", 2, "--shots", 2, "--draws", 2, "--json").stdout)
    assert [row["method"].partition(", max")[0] for row in ran] == [
        "Nearest class mean",
        "Nearest class mean, calibrated",
    ]


def test_constants_of_another_split_are_neither_used_nor_counted(here: Path, ppa: Run, make_activations: Any) -> None:
    splits = {"train": make_activations(12, 0), "val": make_activations(20, 1)}
    actstore.from_arrays(Path("y.zarr"), splits, classes=[f"c{number}" for number in range(10)])
    ppa("calibrate", "--methods", "nn", "--store", "y.zarr", "--split-file", "split.json", *FAST)
    ppa("split", "--store", "y.zarr", "--seed", 1, "--novel-share", 0.3, "--out", "other.json")
    given = ("eval", "--store", "y.zarr", "--draws", 2, "--shots", 1, "--json")
    for file, methods, is_used in (
        ("split.json", "nn", True), ("other.json", "nn", False), ("split.json", "class-mean", False)
    ):  # fmt: skip
        rows = json.loads(ppa(*given, "--split-file", file, "--methods", methods).stdout)
        assert any(row["variant"] == "calibrated" for row in rows) == is_used
        assert ("constants were fitted" in rows[0]["warning"]) == is_used


def test_rows_that_were_fitted_on_are_known_after_an_append(here: Path, make_activations: Any) -> None:
    from predictor.protocol.calibration import Calibration
    from predictor.protocol.evaluation import AllWayTask
    from predictor.protocol.setting import without_fitted_rows
    from predictor.protocol.stand_ins import HeldOut

    splits = {"train": make_activations(12, 0), "val": make_activations(20, 1)}
    store = actstore.from_arrays(Path("y.zarr"), splits, classes=[f"c{number}" for number in range(10)])
    base, before = tuple(store.classes[:7]), store["val"]
    fit = Calibration(1, 0.5, 50, 40, "", held_out=0.2, held_out_of=before.content)
    with store.writer("val") as writer:
        writer.append(*make_activations(20, 2))
    after = actstore.open("y.zarr")["val"]
    assert (len(after), after.content == before.content) == (400, False)
    task, said = without_fitted_rows(AllWayTask(store["train"], after, base, tuple(store.classes[7:])), [fit])
    assert set(task.without) == set(HeldOut(before, 0.2).rows(base).tolist())
    assert said is not None
    assert "28 rows of the base in val" in said


def test_a_classifier_is_set_as_fitted_for_its_examples(here: Path, ppa: Run, classifier: Path) -> None:
    assert load_classifier(classifier).typical_shots() == 12
    fits = json.loads(ppa("calibrate", "--phi", "runs/phi2", *FAST, "--classifier", classifier, "--json").stdout)
    found = load_classifier(classifier)
    assert (found.novel_bias, found.aggregate) == (fits[1]["novel_bias"], fits[1]["aggregate"])  # the nearest: 2


def test_by_hand(here: Path, ppa: Run, classifier: Path) -> None:
    result = json.loads(
        ppa("calibrate", "--classifier", classifier, "--novel-bias", -0.75, "--aggregate", "mean", "--json").stdout
    )
    assert (result["novel_bias"], result["aggregate"]) == (-0.75, "mean")
    found = load_classifier(classifier)
    assert (found.novel_bias, found.aggregate) == (-0.75, "mean")
    assert "novel bias 2, aggregate mean" in ppa("calibrate", "--classifier", classifier, "--novel-bias", 2).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "name the run to calibrate with --phi"),
        (["--novel-bias", 1], 2, "--novel-bias sets a classifier: give it with --classifier"),
        (["--phi", "runs/phi2", "--aggregate", "mean"], 2, "--aggregate belongs to --novel-bias"),
        (["--phi", "runs/phi2", "--shots", "1,x"], 2, "--shots must be whole numbers from 1 on with commas"),
        (["--phi", "runs/phi2", "--shots", "0"], 2, "--shots must be whole numbers from 1 on with commas"),
        (["--phi", "runs/phi2", "--shots", "13"], 1, "has 12 rows, too few for 13 shots"),
        (["--phi", "runs/phi2", "--tasks", 0], 2, "is not in the range"),
        (["--phi", "runs/absent"], 1, "no trained phi at runs/absent"),
        (["--phi", "runs/phi2", "--store", "other.zarr"], 1, "was trained on another store"),
        (["--phi", "runs/phi2", "--store", "narrow.zarr"], 1, "activations of dim 16, those of narrow.zarr have 8"),
        (
            ["--phi", "runs/phi1", "--classifier", "classifier.safetensors"],
            1,
            "was made with another phi than runs/phi1",
        ),
        (["--classifier", "absent", "--novel-bias", 1], 1, "no classifier at absent"),
        (["--classifier", "classifier.safetensors", "--novel-bias", "nan"], 1, "must be a finite number, got nan"),
        (["--classifier", "runs/phi2/model.safetensors", "--novel-bias", 1], 1, "must be a classifier, got a training"),
    ],
)
def test_bad_input(
    here: Path, ppa: Run, classifier: Path, make_activations: Any, arguments: list[Any], code: int, message: str
) -> None:
    names, before = [f"c{number}" for number in range(10)], classifier.read_bytes()
    if "--store" in arguments:
        actstore.from_arrays(Path("other.zarr"), {"train": make_activations(3, 9)}, classes=names)
        actstore.from_arrays(Path("narrow.zarr"), {"train": make_activations(3, 9, dim=8)}, classes=names)
    assert message in ppa("calibrate", "--tasks", 1, *arguments, code=code).stderr
    assert not Path("runs/phi2/calibration.json").exists()
    assert classifier.read_bytes() == before
