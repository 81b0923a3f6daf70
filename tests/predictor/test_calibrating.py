"""Whose constants are whose: by method, number of examples, rows and base categories."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import actstore
import baselines
import predictor
from actstore.errors import InvalidInputError
from predictor.protocol.calibration import FILE, load_calibrations, save_calibrations
from predictor.report.drawing import _constant
from predictor.report.page import training_table

pytestmark = pytest.mark.numeric

NAMES = tuple(f"c{number}" for number in range(10))
SPLIT = predictor.CategorySplit(NAMES[:7], NAMES[7:])


def make_store(path: str, seed: int) -> actstore.ActivationStore:
    random, splits = np.random.default_rng(seed), {}
    centres = 2 * np.random.default_rng(5).random((10, 16))
    for name, count in (("train", 12), ("val", 20)):
        labels = np.repeat(np.arange(10), count)
        splits[name] = (np.abs(centres[labels] + 0.5 * random.standard_normal((len(labels), 16))), labels)
    store = actstore.from_arrays(path, splits, classes=NAMES)
    store.add_provenance(weights_sha256="of one network")
    return actstore.open(path)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> actstore.ActivationStore:
    """So few rows allow no constant otherwise."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("predictor.protocol.calibration.MOST_SHORTFALL", 99)
    return make_store("x.zarr", 1)


def train(store: actstore.ActivationStore, out: str, seed: int = 0) -> predictor.TrainedPhi:
    return predictor.train_phi(
        store, SPLIT, "phi2", out, epochs=1, batches=5, learning_rate=0.05, seed=seed, progress=False
    )


class Scaled(predictor.Method):
    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return -self.scale * torch.cdist(queries, support.mean(1))


@pytest.mark.parametrize("shots", [1, (1, 2)])
def test_phis_of_two_folders_keep_their_own_constants(
    store: actstore.ActivationStore, shots: int | tuple[int, int]
) -> None:
    phis = [train(store, "runs/one", 1), train(store, "runs/two", 2)]
    alone = [predictor.calibrate(phi, store, SPLIT, shots=shots, tasks=20, save=False, progress=False) for phi in phis]
    assert [fit.novel_bias for fit in alone[0]] != [fit.novel_bias for fit in alone[1]]
    together = predictor.calibrate(phis, store, SPLIT, shots=shots, progress=False)
    assert together == alone[0] + alone[1]
    for _ in range(2):
        assert [load_calibrations(phi.path.parent) for phi in phis] == alone
        for phi in phis:
            (phi.path.parent / FILE).unlink()
        results = predictor.evaluate(phis, store, SPLIT, shots=shots, draws=2, calibrate=True, progress=False)
        calibrated = [row for row in results if row["variant"] == "calibrated"]
        for count in (fit.shots for fit in alone[0]):
            expected = [fit.novel_bias for fits in alone for fit in fits if fit.shots == count]
            assert [row["constant"] for row in calibrated if row["shots"] == str(count)] == expected


def test_methods_with_one_key_are_refused(store: actstore.ActivationStore) -> None:
    methods = [Scaled(1), Scaled(5)]
    for call in (
        lambda: predictor.calibrate(methods, store, SPLIT, shots=1),
        lambda: predictor.evaluate(methods, store, SPLIT, shots=1, draws=2),
        lambda: predictor.run_sessions(methods, store, SPLIT, way=1, shots=1, draws=2),
    ):
        with pytest.raises(InvalidInputError, match=r"two methods have the key 'Scaled'.*give them different keys"):
            call()
    for method in methods:
        method.key = f"scaled-{method.scale}"
    predictor.calibrate(methods, store, SPLIT, shots=1, progress=False)
    (one,), (other,) = (method.calibrations for method in methods)
    assert (one.key, other.key) == ("scaled-1", "scaled-5")
    assert other.novel_bias == pytest.approx(5 * one.novel_bias, rel=1e-3)


def test_both_ways_of_combining_examples_may_be_compared(store: actstore.ActivationStore) -> None:
    phi = train(store, "runs/phi2")
    ways = [phi.as_method("max"), phi.as_method("mean")]
    results = predictor.evaluate(ways, store, SPLIT, shots=2, draws=2, calibrate=True, progress=False)
    assert [row["variant"] for row in results] == ["", "calibrated", "mean", "calibrated"]
    assert len(load_calibrations(phi.path.parent)) == 1


def test_a_method_without_a_folder_keeps_constants_for_other_shots(store: actstore.ActivationStore) -> None:
    method = Scaled()
    fits = [*predictor.calibrate(method, store, SPLIT, shots=1), *predictor.calibrate(method, store, SPLIT, shots=2)]
    assert method.calibrations == fits
    assert predictor.calibrate(method, store, SPLIT, shots=1) == fits[:1]
    assert method.calibrations == [fits[1], fits[0]]


def test_a_class_is_refused(store: actstore.ActivationStore) -> None:
    with pytest.raises(InvalidInputError, match=r"Scaled is a class, .* give Scaled\(\)"):
        predictor.calibrate(Scaled, store, SPLIT, shots=1)


def test_constants_for_other_shots_stay_and_those_of_other_rows_go(
    store: actstore.ActivationStore, capsys: pytest.CaptureFixture[str]
) -> None:
    phi = train(store, "runs/phi2")
    folder = phi.path.parent
    (first,) = predictor.calibrate(phi, store, SPLIT, shots=2, tasks=2)
    assert "in place of" not in capsys.readouterr().err
    (second,) = predictor.calibrate(phi, store, SPLIT, shots=1, tasks=2)
    assert "in place of" not in capsys.readouterr().err
    assert load_calibrations(folder) == [first, second]
    assert save_calibrations(folder, [replace(second, novel_bias=0.5)]) == [second]
    assert [fit.novel_bias for fit in load_calibrations(folder)] == [first.novel_bias, 0.5]
    others = [replace(first, key="phi1"), replace(first, share="10%")]
    save_calibrations(folder, others)
    for fit in (replace(second, content="of other rows"), replace(second, base=NAMES[:6])):
        save_calibrations(folder, [fit])
        assert load_calibrations(folder) == [*others, fit]


def test_a_damaged_file_is_made_anew(store: actstore.ActivationStore, capsys: pytest.CaptureFixture[str]) -> None:
    phi = train(store, "runs/phi2")
    (phi.path.parent / FILE).write_text("[{}]")
    with pytest.raises(actstore.errors.DamagedError, match="`ppa calibrate` and --force"):
        predictor.evaluate(phi, store, SPLIT, shots=1, draws=2)
    fits = predictor.calibrate(phi, store, SPLIT, shots=1, tasks=2)
    assert "runs/phi2/calibration.json was damaged" in capsys.readouterr().err
    assert load_calibrations(phi.path.parent) == fits


def test_it_is_said_which_method_knew_the_stand_ins(store: actstore.ActivationStore) -> None:
    methods = [train(store, "runs/phi2"), *baselines.make("class-mean")]
    known = "; the method was trained on the stand-ins"
    fits = predictor.calibrate(methods, store, SPLIT, shots=1, tasks=2, save=False)
    assert [fit.fitted_on.endswith(known) for fit in fits] == [True, False]
    assert fits.fitted_on == f"phi2: fitted on {fits[0].fitted_on}; class-mean: fitted on {fits[1].fitted_on}"
    store.add_provenance(trained_classes=list(SPLIT.base))
    fits = predictor.calibrate(methods, "x.zarr", SPLIT, shots=1, tasks=2, save=False)
    assert not any(known in fit.fitted_on for fit in fits)
    assert fits.fitted_on == f"fitted on {fits[0].fitted_on}"


def test_it_is_said_how_a_missing_constant_is_fitted(store: actstore.ActivationStore) -> None:
    head = predictor.Head(torch.from_numpy(store["train"].means()[:7]).float(), torch.zeros(7), SPLIT.base)
    made = baselines.make("imprint", split=SPLIT, train=store["train"], head=head, runs="runs/x")
    methods = [train(store, "runs/phi2"), *made]
    predictor.calibrate(methods, store, SPLIT, shots=1, tasks=2)
    results = predictor.evaluate(methods, store, SPLIT, shots=(1, 2, 3), draws=2)
    said = [text for text in results.warnings if text.startswith("no constant was fitted for 2 shots and 3 shots: ")]
    assert [text.partition(" or ")[2] for text in said] == [
        "`ppa calibrate --phi runs/phi2 --shots 2,3`, fits it",
        *["`ppa calibrate --methods imprint --runs runs/x --shots 2,3`, fits it"] * 2,
    ]


def test_a_classifier_takes_no_constant_of_other_rows(store: actstore.ActivationStore) -> None:
    phi = train(store, "runs/phi2")
    fits = predictor.calibrate(phi, store, SPLIT, shots=1)
    assert fits[0].helps
    other = make_store("other.zarr", 2)
    for rows, has_constant in ((store, True), (other, False)):
        classifier = predictor.Classifier.from_phi(phi, store=rows, progress=False)
        classifier.adapt("new", store["val"].of_class("c9")[:1])
        assert classifier.novel_bias == (fits[0].novel_bias if has_constant else 0)
    with store.writer("train") as writer:
        writer.append(np.ones((2, 16)), np.array([0, 9]))
    classifier = predictor.Classifier.from_phi(phi, progress=False)
    classifier.adapt("new", store["val"].of_class("c9")[:1])
    assert classifier.novel_bias == fits[0].novel_bias


def test_a_report_shows_the_constant_that_a_table_would(store: actstore.ActivationStore) -> None:
    phi = train(store, "runs/phi2")
    folder, rows = phi.path.parent, store["train"]
    (fit,) = predictor.calibrate(phi, store, SPLIT, shots=1, tasks=2)
    assert _constant(phi, rows) == fit
    for unfit in ({"failed": "why"}, {"shots": 2}, {"key": "phi1"}, {"content": "other"}, {"base": NAMES[:6]}):
        (folder / FILE).unlink(missing_ok=True)
        save_calibrations(folder, [replace(fit, **unfit)])
        assert _constant(phi, rows) is None
    save_calibrations(folder, [replace(fit, failed="why"), replace(fit, shots=2), replace(fit, key="phi1", shots=5)])
    (line,) = training_table([phi])["rows"]
    first, second = str(line[-1]).split("; ")
    assert first.startswith("1 shot ")
    assert first.endswith(", failed)")
    assert second.startswith("2 shots ")
    assert "failed" not in second


class Sampled(Scaled):
    """Finds out how much of the base it takes only when it is prepared, as ridge regression on many rows does."""

    def prepare(self, base: predictor.BaseCategories) -> None:
        super().prepare(base)
        self.share = "4.3%"


def test_constants_of_a_method_that_takes_a_sample_are_found_again(store: actstore.ActivationStore) -> None:
    method = Sampled()
    method.folder = Path("runs")
    predictor.calibrate(method, store, SPLIT, shots=1, progress=False)
    again = Sampled()
    again.folder = Path("runs")
    results = predictor.evaluate(again, store, SPLIT, shots=1, draws=2, progress=False)
    assert [row["variant"] for row in results] == ["", "calibrated"]
