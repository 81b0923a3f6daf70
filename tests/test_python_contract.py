"""What a caller of Python meets who errs: an InvalidInputError that names what was given, and what to give instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import actstore
import baselines
import predictor
from actstore.errors import InvalidInputError

NAMES = ("ant", "bee", "cat", "dog", "eel", "fox")
SPLIT = predictor.CategorySplit(NAMES[:4], NAMES[4:])
SHORT: dict[str, Any] = {"shots": 1, "draws": 2, "progress": False}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> actstore.ActivationStore:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    splits = {}
    for name, count in (("train", 12), ("val", 10)):
        labels = np.repeat(np.arange(6), count)
        splits[name] = np.eye(6, 8)[labels] + 0.5 * random.random((6 * count, 8)), labels
    return actstore.from_arrays("x.zarr", splits, classes=NAMES)


class Whitened(predictor.Method):
    """It does not call super().prepare, and has no key."""

    def prepare(self, base: predictor.BaseCategories) -> None:
        self.spread = base.means.std(0) + 0.1

    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return -torch.cdist(queries / self.spread, support.mean(1) / self.spread)


class Wrong(predictor.Method):
    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        self.change = change

    def novel_scores(self, queries: Tensor, support: Tensor) -> Any:
        return self.change(-torch.cdist(queries, support.mean(1)))


def test_an_own_method_has_a_key_and_is_calibrated(
    store: actstore.ActivationStore, capsys: pytest.CaptureFixture[str]
) -> None:
    method = Whitened()
    assert method.key == "Whitened"
    (fit,) = predictor.calibrate(method, store, SPLIT, shots=1, tasks=2)
    assert fit.key == "Whitened"
    assert "Whitened" in capsys.readouterr().err  # it has no folder: its constant is not kept
    assert not Path("runs").exists()
    results = predictor.evaluate(method, store, SPLIT, **SHORT)
    calibrated = "calibrated" in {row["variant"] for row in results}
    assert calibrated == (not fit.failed)
    assert calibrated or any("calibration failed: Whitened" in text for text in results.warnings)


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda scores: scores[:, 0], r"got \(\d+,\)"),
        (lambda scores: scores.T, r"got \(\d+, \d+\)"),
        (lambda scores: scores.numpy(), "got ndarray"),
    ],
    ids=["a dimension less", "transposed", "numpy"],
)
def test_scores_of_another_shape_name_the_method_and_the_function(
    store: actstore.ActivationStore, change: Callable[[Tensor], Any], got: str
) -> None:
    told = rf"Wrong: novel_scores must give a tensor \(n, ways\) = \(\d+, \d+\), {got}"
    for measure in (
        lambda: predictor.evaluate(Wrong(change), store, SPLIT, **SHORT),
        lambda: predictor.run_sessions(Wrong(change), store, SPLIT, way=1, **SHORT),
        lambda: predictor.calibrate(Wrong(change), store, SPLIT, shots=1, tasks=1),
        lambda: predictor.run_episodes(Wrong(change), store, SPLIT, way=2, shots=1, tasks=2, progress=False),
    ):
        with pytest.raises(InvalidInputError, match=told):
            measure()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda store: baselines.make(["nn"]), r"text, got \['nn'\]"),
        (lambda store: predictor.evaluate(Whitened(), store["val"], SPLIT, **SHORT), "got split 'val' of"),
        (lambda store: predictor.evaluate(Whitened(), store, ["ant"], **SHORT), "CategorySplit or its file, got list"),
        (lambda store: predictor.train_phi(SPLIT, store["train"]), "got CategorySplit; the order is"),
        (lambda store: predictor.train_phi(store, store["train"]), "or its file, got Split"),
        (lambda store: predictor.evaluate(Whitened(), store, SPLIT, shots="1,5"), "shots .* got '1,5'"),
        (lambda store: predictor.evaluate(Whitened(), store, SPLIT, shots=1.5), "shots .* got 1.5"),
        (lambda store: predictor.run_sessions(Whitened(), store, SPLIT, shots=(1, 5)), r"one number .* got \(1, 5\)"),
        (lambda store: predictor.run_episodes(Whitened(), store, SPLIT, way=2, shots="1"), "shots .* got '1'"),
        (lambda store: predictor.run_episodes("nn", store, SPLIT, way=2), r"baselines.make\('nn'\)"),
        (lambda store: predictor.evaluate(Whitened(), store, SPLIT, calibrate="yes"), "calibrate .* got 'yes'"),
        (lambda store: predictor.evaluate(Whitened(), store, SPLIT, shots=1, progress="bar"), "progress .* got 'bar'"),
    ],
)
def test_a_wrong_argument_is_named(
    store: actstore.ActivationStore, call: Callable[[actstore.ActivationStore], Any], told: str
) -> None:
    with pytest.raises(InvalidInputError, match=told):
        call(store)


def test_what_takes_a_store_takes_its_path_and_what_takes_methods_takes_one(store: actstore.ActivationStore) -> None:
    assert predictor.split_categories("x.zarr", novel=1 / 3) == SPLIT
    results = predictor.run_episodes(Whitened(), "x.zarr", SPLIT, way=2, shots=1, tasks=2, progress=False)
    assert [row["method"] for row in results] == [results[0]["method"]] == ["Whitened"]


def test_shots_are_numbers_in_a_data_frame(store: actstore.ActivationStore) -> None:
    results = predictor.evaluate(Whitened(), store, SPLIT, shots=(1, 2), draws=2, calibrate=False, progress=False)
    frame = results.to_pandas()
    assert len(frame[frame.shots == 1]) == 1


def test_results_without_a_record_are_an_empty_data_frame() -> None:
    assert len(predictor.AllWayResults([]).to_pandas()) == 0


def test_a_store_without_a_test_split_says_how_another_is_chosen(store: actstore.ActivationStore) -> None:
    rows, labels = store["train"].take(range(72)), store["train"].labels
    actstore.from_arrays("y.zarr", {"train": (rows, labels), "more": (rows, labels)}, classes=NAMES)
    with pytest.raises(InvalidInputError, match=r"choose another with test= \(--test-split\): more"):
        predictor.evaluate(Whitened(), "y.zarr", SPLIT, **SHORT)


def test_sessions_warn_of_a_network_that_saw_a_category(store: actstore.ActivationStore) -> None:
    store.add_provenance(trained_classes=["eel"])
    for results in (
        predictor.run_sessions(Whitened(), store, SPLIT, way=1, **SHORT),
        predictor.evaluate(Whitened(), store, SPLIT, **SHORT),
    ):
        assert any("trained on novel class 'eel'" in text for text in results.warnings)


def test_constants_show_themselves_as_a_table_and_it_is_said_where_they_are_kept(
    store: actstore.ActivationStore, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = baselines.make("class-mean")
    fits = predictor.calibrate(methods, store, SPLIT, shots=(1, 2), tasks=2)
    assert [line.split()[:3] for line in repr(fits).splitlines()] == [
        ["method", "D_large", "shots"], ["class-mean", "100%", "1"], ["class-mean", "100%", "2"],
    ]  # fmt: skip
    assert [fit.shots for fit in fits] == [1, 2]
    assert "constants kept in runs/calibration.json\n" in capsys.readouterr().err
    predictor.calibrate(methods, store, SPLIT, shots=1, tasks=2)
    assert "in place of those of class-mean" in capsys.readouterr().err
    predictor.calibrate(methods, store, SPLIT, shots=1, tasks=2, progress=False)
    assert not capsys.readouterr().err


def test_tables_hold_the_constant_and_say_when_there_are_few_draws(store: actstore.ActivationStore) -> None:
    method = Whitened()
    method.calibrations = [predictor.Calibration(1, 0.25, 50.0, 40.0, "by hand", key="Whitened")]
    results = predictor.evaluate(method, store, SPLIT, **SHORT)
    assert results.to_pandas()["constant"].tolist() == [0.0, 0.25]
    assert "2 draws are themselves uncertain" in results.to_text()
    assert "curve" not in results.to_pandas()
    more = predictor.evaluate(method, store, SPLIT, shots=1, draws=5, progress=False)
    assert "uncertain" not in more.to_text()
    sessions = predictor.run_sessions(method, store, SPLIT, way=1, **SHORT)
    frame = sessions.to_pandas()
    assert frame["categories"].tolist() == [4, 5, 6] * 2
    assert frame["accuracy"].notna().all()


def test_tasks_that_the_paper_has_no_figures_of_have_no_row_of_it(store: actstore.ActivationStore) -> None:
    results = predictor.run_episodes(Whitened(), store, SPLIT, way=2, shots=1, tasks=2, progress=False)
    assert len(results) == 1
    assert "paper" not in results.to_text()
    assert "no AUROC of Whitened: it is measured where scores_categories_apart is True" in results.notes()


def test_a_picture_is_of_a_known_format(store: actstore.ActivationStore) -> None:
    results = predictor.evaluate(Whitened(), store, SPLIT, calibrate=False, **SHORT)
    with pytest.raises(InvalidInputError, match=r"\.png, \.svg or \.pdf, got r\.md"):
        results.save_plot("r.md")
    results.save_plot("r.pdf")
    assert Path("r.pdf").read_bytes().startswith(b"%PDF")


def test_lines_of_sessions_are_told_apart(store: actstore.ActivationStore) -> None:
    results = predictor.run_sessions(baselines.make("nn"), store, SPLIT, way=1, **SHORT)
    labels = [text.get_text() for text in results.plot().legends[0].get_texts()]
    assert len(set(labels)) == len(labels) == 3


@pytest.fixture
def phi(store: actstore.ActivationStore) -> predictor.TrainedPhi:
    return predictor.train_phi(store, SPLIT, "phi1", epochs=1, batches=2, progress=False)


def test_of_paths_and_categories_of_another_kind_it_is_said_what_they_are(
    store: actstore.ActivationStore, phi: predictor.TrainedPhi
) -> None:
    with pytest.raises(actstore.errors.NotAStoreError, match=r"in it are the stores .*x\.zarr"):
        actstore.open(".")
    with pytest.raises(InvalidInputError, match=r"x\.zarr is a store, not the folder of a trained phi"):
        predictor.load_phi("x.zarr")
    with pytest.raises(InvalidInputError, match=r"split=phi\.categories"):
        predictor.evaluate(phi, store, predictor.CategorySplit(NAMES[:3], NAMES[3:]), **SHORT)
    with pytest.raises(InvalidInputError, match=r"must be a dictionary .* got ndarray"):
        actstore.from_arrays("y.zarr", np.eye(3), np.arange(3))  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="'Clasifier'; did you mean Classifier"):
        _ = predictor.Clasifier


def test_a_classifier_says_how_it_is_made_and_that_it_knows_nothing(
    store: actstore.ActivationStore, phi: predictor.TrainedPhi
) -> None:
    with pytest.raises(InvalidInputError, match=r"Classifier\.from_phi\(phi\)"):
        predictor.Classifier()
    classifier = predictor.Classifier.from_backbone("efficientnet-lite0", progress=False)
    for export in (classifier.export_onnx, classifier.export_torch):
        with pytest.raises(InvalidInputError, match="knows no category yet"):
            export("c.onnx")
    with pytest.raises(InvalidInputError, match="by their files or folders, got Image"):
        classifier.predict_images([Image.new("RGB", (8, 8))])  # type: ignore[list-item]


def test_names_are_checked_before_images_are_read(
    store: actstore.ActivationStore, phi: predictor.TrainedPhi, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = predictor.Classifier.from_phi(phi, store=store, progress=False)
    Path("photos/ant").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save("photos/ant/1.png")
    with pytest.raises(InvalidInputError, match="'ant' is a base category already"):  # it has no network to read with
        classifier.adapt_folder("photos")


def test_an_image_that_is_missing_is_skipped_where_others_are_there(tmp_path: Path) -> None:
    classifier = predictor.Classifier.from_backbone("efficientnet-lite0", progress=False)
    photo = str(tmp_path / "1.png")
    Image.new("RGB", (8, 8)).save(photo)
    classifier.adapt_images("n02129604", photo, device="cpu", progress=False)
    gone = str(tmp_path / "gone.png")
    found = classifier.predict_images([photo, gone], device="cpu", progress=False)
    assert list(found.unreadable) == [gone]
    assert found.to_pandas()["category"].tolist() in (["n02129604"], ["unknown"])
    with pytest.raises(InvalidInputError, match=r"gone\.png"):
        classifier.predict_images([photo, gone], on_error="fail", device="cpu", progress=False)


@pytest.mark.parametrize(
    ("name", "told"), [("own.Whitened", "module:Class"), ("gone_module:Own", "of a module in .* or of an installed")]
)
def test_a_method_that_is_not_found_says_how_it_is_named(name: str, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        baselines.make(name)
