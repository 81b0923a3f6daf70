"""A classifier as a notebook uses it: public names alone, paths as text, small generated images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import actstore
import predictor
from actstore.errors import InvalidInputError

LITE0 = "efficientnet-lite0"  # a dependency brings its weights
COLOURS = {"blue": (20, 40, 220), "green": (30, 200, 40), "red": (220, 30, 20)}


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """photos/blue, green and red: four images of each, as a relative path."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for number in range(4):
            pixels = np.clip(np.array(colour) + random.integers(-20, 20, (40, 40, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    return "photos"


@pytest.fixture
def classifier(photos: str) -> predictor.Classifier:
    """Taught blue and red; it has never seen green."""
    made = predictor.Classifier.from_backbone(LITE0, progress=False)
    made.adapt_images("blue", [f"{photos}/blue/{number}.png" for number in range(3)], device="cpu", progress=False)
    made.adapt_images("red", f"{photos}/red", device="cpu", progress=False)
    return made


def test_from_a_folder_to_answers_and_back_from_a_file(photos: str, capsys: pytest.CaptureFixture[str]) -> None:
    classifier = predictor.Classifier.from_backbone(LITE0, progress=False)
    assert "0 taught" in repr(classifier)
    done = classifier.adapt_folder(photos, device="cpu", progress=False)
    assert done.learnt == dict.fromkeys(COLOURS, 4)
    assert (done.examples, done.unreadable) == (12, {})
    found = classifier.predict_images([f"{photos}/red/0.png", f"{photos}/green"], top=2, device="cpu", progress=False)
    assert [one.top[0].category for one in found] == ["red"] + ["green"] * 4
    assert all(len(one.top) == 2 for one in found)
    classifier.save("c.safetensors")
    again = predictor.load_classifier("c.safetensors")
    same = again.predict_images(f"{photos}/green", top=2, device="cpu", progress=False)
    assert same.to_json() == found.to_json()[1:]
    assert again.categories == tuple(COLOURS)
    assert capsys.readouterr().err == ""  # progress=False is silent


def test_the_network_is_chosen_and_said(
    photos: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(Path("no-cache").absolute()))
    classifier = predictor.Classifier.from_backbone(offline=True)
    assert LITE0 in capsys.readouterr().err
    assert LITE0 in repr(classifier)
    assert classifier.about["network"]["backbone"] == LITE0


def test_results_show_themselves(classifier: predictor.Classifier, photos: str) -> None:
    (Path(photos) / "red" / "broken.jpg").write_bytes(b"no image")
    found = classifier.predict_images(photos, device="cpu", progress=False)
    assert len(found) == 12
    assert list(found.unreadable) == [f"{photos}/red/broken.jpg"]
    assert any("broken.jpg" in line for line in found.warnings)
    assert "broken.jpg" in repr(found)
    assert found[0].image == f"{photos}/blue/0.png"
    frame = found.to_pandas()
    assert list(frame.columns[:5]) == ["image", "answer", "unknown", "category", "category_1"]
    assert frame["category_1"].tolist() == [one.top[0].category for one in found]
    assert found.to_csv().count("\n") == 13
    assert found.to_markdown(top=1).count("\n") == 13
    for shown in (classifier, found):
        assert "<table>" in shown._repr_html_()  # type: ignore[attr-defined]
    with pytest.raises(InvalidInputError, match=r"broken\.jpg"):
        classifier.predict_images(photos, on_error="fail", device="cpu", progress=False)
    with pytest.raises(InvalidInputError, match="missing"):
        classifier.predict_images("missing.png")


def test_unknown_and_only_mine(classifier: predictor.Classifier, photos: str) -> None:
    classifier.set_unknown_at(1.0)
    found = classifier.predict_images(f"{photos}/green", only_mine=True, device="cpu", progress=False)
    assert [one.answer for one in found] == ["unknown"] * 4
    assert sum(guess.probability for guess in found[0].top) == pytest.approx(1)
    assert "unknown" in repr(found)
    classifier.set_unknown_at(-1)
    assert not any(one.is_unknown for one in classifier.predict_images(photos, device="cpu", progress=False))


def test_unknown_has_no_probability_of_its_own() -> None:
    from predictor.classifier.predictions import Guess, Prediction, Predictions

    top = (Guess("n1", "okapi", 0.6), Guess("n2", "zebra", 0.4))
    shown = Predictions((Prediction("a.jpg", top), Prediction("b.jpg", top, is_unknown=True))).to_text().splitlines()
    assert shown[1].split() == ["a.jpg", "okapi", "60.0%", "zebra", "40.0%"]
    assert shown[2].split() == ["b.jpg", "unknown", "okapi", "60.0%,", "zebra", "40.0%"]


def test_images_that_cannot_be_learnt_from(classifier: predictor.Classifier, photos: str) -> None:
    before = dict(classifier.support)
    (Path(photos) / "grey").mkdir()
    (Path(photos) / "grey" / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(InvalidInputError, match="broken"):
        classifier.adapt_folder(photos, extend=True, device="cpu", progress=False)
    with pytest.raises(InvalidInputError, match="Unknown"):
        classifier.adapt_images("Unknown", f"{photos}/green/0.png", device="cpu", progress=False)
    with pytest.raises(InvalidInputError, match="red"):  # it exists, and is not to be extended
        classifier.adapt_images("red", f"{photos}/red/0.png", device="cpu", progress=False)
    assert classifier.support.keys() == before.keys()
    assert all(torch.equal(classifier.support[name], rows) for name, rows in before.items())
    done = classifier.adapt_images("red", f"{photos}/red/0.png", extend=True, device="cpu", progress=False)
    assert done.learnt == {"red": 1}
    assert len(classifier.support["red"]) == 5
    skipped = classifier.adapt_folder(photos, extend=True, on_error="skip", device="cpu", progress=False)
    assert "grey" not in skipped.learnt
    assert any("grey" in text for text in skipped.warnings)


MISTAKES: dict[str, tuple[Callable[[predictor.Classifier], object], str]] = {
    "no image": (lambda one: one.adapt_images("grey", []), "grey"),
    "nothing asked": (lambda one: one.predict_images([]), "no image"),
    "a number": (lambda one: one.adapt_images("grey", [3]), "int"),  # type: ignore[list-item]
    "an image": (lambda one: one.predict_images(Image.new("RGB", (9, 9))), "Image"),  # type: ignore[arg-type]
    "None": (lambda one: one.predict_images(None), "NoneType"),  # type: ignore[arg-type]
    "on_error": (lambda one: one.predict_images("photos", on_error="contine"), "contine"),  # type: ignore[arg-type]
    "aggregate": (lambda one: one.adapt_images("grey", "photos/green", aggregate="median"), "median"),  # type: ignore[arg-type]
    "a name": (lambda one: one.adapt_images(7, "photos/green"), "7"),  # type: ignore[arg-type]
    "no base": (lambda one: one.limit_base_loss(1), "no base"),
    "check": (lambda one: one.export_onnx("c.onnx", check="photos"), "with_backbone"),
    "no network": (lambda one: predictor.Classifier.alone(8).check_folder("photos"), "no network"),
    "a folder": (lambda one: predictor.load_classifier("photos"), "folder"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_and_change_nothing(classifier: predictor.Classifier, mistake: str) -> None:
    act, named = MISTAKES[mistake]
    with pytest.raises(InvalidInputError, match=named):
        act(classifier)
    assert classifier.categories == ("blue", "red")


def test_a_folder_is_checked_before_anything_is_learnt(classifier: predictor.Classifier, photos: str) -> None:
    Image.open(f"{photos}/red/0.png").convert("RGB").save(f"{photos}/blue/astray.png")
    (Path(photos) / "green" / "broken.jpg").write_bytes(b"no image")
    before = classifier.categories
    found = classifier.check_folder(photos, device="cpu", progress=False)
    assert classifier.categories == before
    assert found.names == tuple(COLOURS)
    assert [found.image_of(one) for one in found.wrong] == [f"{photos}/blue/astray.png"]
    assert 0 < found.accuracy < 1
    assert any("broken.jpg" in line for line in found.warnings)
    assert len(found.to_pandas()) == len(found.examples) == 13
    assert "astray.png" in repr(found)
    assert "<table>" in found._repr_html_()
    found.write_sheet("check.html")
    assert "astray.png" in Path("check.html").read_text()
    assert classifier.check().names == ("blue", "red")


def test_what_the_network_knows_is_kept(photos: str) -> None:
    classifier = predictor.Classifier.from_backbone(LITE0, keep_known=True, progress=False)
    known = len(classifier.base)
    assert known == 1000
    first = classifier.novel_bias
    classifier.adapt_folder(photos, device="cpu", progress=False)
    assert classifier.novel_bias != first  # fitted with what was learnt
    assert len(classifier.categories) == known + len(COLOURS)
    by_hand = 0.25
    classifier.calibrate(by_hand)
    classifier.adapt("mine", torch.rand(2, classifier.dim))
    assert classifier.novel_bias == by_hand


def test_exports(classifier: predictor.Classifier) -> None:
    pytest.importorskip("onnx")
    difference = classifier.export_onnx("c.onnx")
    assert isinstance(difference, float)
    assert json.loads(Path("c.json").read_text())["categories"] == ["blue", "red"]
    classifier.export_torch("linear.pt")
    state = torch.load("linear.pt", weights_only=True)
    assert state["weight"].shape == (2, classifier.dim)


@pytest.fixture(scope="module")
def run_of_phi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FOLDER/x.zarr, and FOLDER/runs/phi2 that was trained on it and calibrated."""
    from cli.ppa import main

    folder = tmp_path_factory.mktemp("phi")
    random = np.random.default_rng(0)
    centres = 2 * random.random((10, 16))
    labels = {"train": np.repeat(np.arange(10), 12), "val": np.repeat(np.arange(10), 6)}
    splits = {
        name: (np.abs(centres[rows] + 0.4 * random.standard_normal((len(rows), 16))).astype(np.float32), rows)
        for name, rows in labels.items()
    }
    actstore.from_arrays(folder / "x.zarr", splits, classes=[f"c{number}" for number in range(10)])
    (folder / "split.json").write_text(
        json.dumps({"base": [f"c{number}" for number in range(7)], "novel": ["c7", "c8", "c9"]})
    )
    at, run = ["--store", str(folder / "x.zarr")], str(folder / "runs" / "phi2")
    allowed = pytest.MonkeyPatch()
    allowed.setattr("predictor.protocol.calibration.MOST_SHORTFALL", 99)  # so few rows allow no constant otherwise
    for words in (
        ["train", "--phi", "phi2", *at, "--split-file", str(folder / "split.json"), "--epochs", "1", "--batches", "5",
         "--lr", "0.05", "--out", run],
        ["calibrate", "--phi", run, *at, "--shots", "1,2", "--tasks", "2"],
    ):  # fmt: skip
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
    allowed.undo()
    return folder


def test_from_a_phi_beside_its_base(run_of_phi: Path) -> None:
    classifier = predictor.Classifier.from_phi(str(run_of_phi / "runs" / "phi2"), progress=False)
    assert classifier.base == tuple(f"c{number}" for number in range(7))
    store = actstore.open(run_of_phi / "x.zarr")
    done = classifier.adapt_store(store, split="val", classes=["c7", "c8"], rows="0:60")
    assert done.learnt == {"c7": 6, "c8": 6}
    fits = json.loads((run_of_phi / "runs" / "phi2" / "calibration.json").read_text())["calibrations"]
    assert classifier.novel_bias == next(fit["novel_bias"] for fit in fits if fit["shots"] == 2)  # the nearest
    found = classifier.predict_store(str(run_of_phi / "x.zarr"), split="val", classes=["c7"], top=3)
    assert len(found) == 6
    assert len(found.to_pandas()) == 6
    loss = classifier.limit_base_loss(0)
    assert loss.before is not None
    assert loss.loss == 0 <= loss.before.loss
    assert classifier.novel_bias == loss.novel_bias


def test_a_phi_given_as_it_was_loaded_is_the_same(run_of_phi: Path) -> None:
    path = run_of_phi / "runs" / "phi2"
    by_path = predictor.Classifier.from_phi(path, progress=False)
    by_phi = predictor.Classifier.from_phi(predictor.load_phi(path), store=run_of_phi / "x.zarr", progress=False)
    assert by_path.base_parameters.equal(by_phi.base_parameters)
    examples = torch.rand(2, 16)
    for classifier in (by_path, by_phi):
        classifier.adapt("new", examples)
    assert by_path.novel_bias == by_phi.novel_bias != 0


def test_a_store_that_is_gone_is_named(run_of_phi: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run_of_phi, tmp_path / "moved")
    (tmp_path / "moved" / "runs" / "phi2" / "store.json").unlink()
    with pytest.raises(InvalidInputError, match="phi2"):
        predictor.Classifier.from_phi(tmp_path / "moved" / "runs" / "phi2", progress=False)


def test_from_the_own_classifier_of_a_store(run_of_phi: Path, tmp_path: Path) -> None:
    from predictor.protocol.head import Head, write_head

    base = tuple(f"c{number}" for number in range(7))
    means = torch.from_numpy(actstore.open(run_of_phi / "x.zarr")["train"].means()[:7]).float()
    head = Head(means, -means.square().sum(1) / 2, base)  # (7, 16): the nearest mean, which knows the base well
    write_head(tmp_path / "head.safetensors", head)
    classifier = predictor.Classifier.from_backbone(
        store=str(run_of_phi / "x.zarr"), categories=str(run_of_phi / "split.json"),
        head=str(tmp_path / "head.safetensors"), progress=False,
    )  # fmt: skip
    assert classifier.base == base
    example = actstore.open(run_of_phi / "x.zarr")["train"].of_class("c7")[:1].copy()
    classifier.adapt("new", torch.from_numpy(example))
    assert classifier.novel_bias != 0  # calibrated on base categories when the first one was learnt
    with pytest.raises(InvalidInputError, match="keep_known"):
        predictor.Classifier.from_backbone(store=run_of_phi / "x.zarr", keep_known=True)
    with pytest.raises(InvalidInputError, match="categories"):
        predictor.Classifier.from_backbone(LITE0, categories=run_of_phi / "split.json")


def test_public_names_are_listed() -> None:
    assert {"Classifier", "load_classifier", "Adaptation", "Check", "Predictions"} <= set(predictor.__all__)
    assert set(predictor.__all__) <= set(dir(predictor))
    for name in predictor.__all__:
        assert getattr(predictor, name) is not None
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = predictor.nothing_like_it
