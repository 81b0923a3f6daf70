"""Activations of both signs, as transformers give them: phi starts as the identity, and nothing cuts them off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import actstore
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import load_classifier, save_classifier
from predictor.phi.network import Phi, PhiSpec, analyse, build_phi
from predictor.phi.rule import PhiMethod
from predictor.protocol import stand_ins
from predictor.protocol.base_categories import class_means, is_signed
from predictor.protocol.calibration import fit_calibrations
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.evaluation import all_way_task, measure
from predictor.training.phi import choose_config, run_phi_training
from predictor.training.trained_phi import load_phi

BASE = tuple(f"c{number}" for number in range(7))
SPLIT = CategorySplit(BASE, ("c7", "c8", "c9"))


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> actstore.ActivationStore:
    """Ten classes whose centres are as often below zero as above."""

    def rows(per_class: int, seed: int) -> tuple[Any, Any]:
        centres = np.random.default_rng(5).standard_normal((10, 16))
        labels = np.repeat(np.arange(10), per_class)
        noise = np.random.default_rng(seed).standard_normal((len(labels), 16))
        return (centres[labels] + 0.5 * noise).astype(np.float32), labels

    path = tmp_path_factory.mktemp("signed") / "x.zarr"
    parts = {"train": rows(20, 0), "val": rows(8, 1)}
    return actstore.from_arrays(path, parts, classes=[f"c{number}" for number in range(10)], chunk_rows=64)


@pytest.mark.parametrize("kind", ["phi1", "phi2", "phi2star"])
@pytest.mark.parametrize("bias", [False, True])
@given(seed=st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_untrained_it_is_the_cosine_prototype_on_both_signs(kind: Any, bias: bool, seed: int) -> None:
    rows = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))
    found = Phi(PhiSpec(kind, 8, bias=bias, signed=kind != "phi1"))(rows)
    torch.testing.assert_close(found, rows / rows.norm(dim=1, keepdim=True))


def test_a_spec_of_before_is_unchanged_and_a_signed_one_comes_back() -> None:
    assert "signed" not in PhiSpec("phi2", 8).to_json()
    phi = Phi(PhiSpec("phi2", 8, signed=True))
    again = build_phi(phi.spec.to_json(), phi.state_dict())
    rows = torch.randn(3, 8)
    torch.testing.assert_close(again(rows), phi(rows).detach())
    assert analyse(again, torch.eye(8))["diagonal_min"] == 1


def test_signs_are_found_in_the_rows_of_the_base(
    signed: actstore.ActivationStore, store: actstore.ActivationStore
) -> None:
    assert is_signed(signed["train"], BASE)
    assert not is_signed(store["train"], BASE)
    assert choose_config("code", "phi2").spec(8, signed=True).signed
    assert not choose_config("code", "phi1").spec(8, signed=True).signed


@pytest.mark.parametrize("kind", ["phi1", "phi2"])
def test_training_starts_from_the_prototypes_and_keeps_them(
    signed: actstore.ActivationStore, tmp_path: Path, kind: Any
) -> None:
    train, test = signed["train"], signed["val"]
    run_phi_training(train, None, SPLIT, choose_config("code", kind, epochs=1, batches=20), tmp_path)
    phi = load_phi(tmp_path).phi
    assert phi.spec.signed == (kind == "phi2")
    task = all_way_task(train, test, SPLIT)
    plain = PhiMethod(Phi(PhiSpec("phi1", 16)).eval().requires_grad_(False))
    trained, prototype = (measure(method, task, [1], draws=3)[0].mean["top1_few"] for method in (PhiMethod(phi), plain))
    assert trained >= prototype - 3


def test_it_is_calibrated(signed: actstore.ActivationStore) -> None:
    train = signed["train"]
    phi = Phi(PhiSpec("phi2", 16, signed=True)).eval().requires_grad_(False)
    (fit,) = fit_calibrations([PhiMethod(phi)], stand_ins.StandInSource(train, SPLIT, 1), [1], tasks=3)
    assert fit.harmonic_mean >= fit.uncalibrated


def test_a_classifier_with_such_a_phi_is_written_and_read(signed: actstore.ActivationStore, tmp_path: Path) -> None:
    train = signed["train"]
    phi = Phi(PhiSpec("phi2", 16, signed=True)).eval().requires_grad_(False)
    learner = Classifier.from_means(phi, BASE, class_means(train, BASE))
    learner.adapt("c7", torch.from_numpy(train.of_class("c7")[:3].astype(np.float32)))
    save_classifier(tmp_path / "c.safetensors", learner)
    queries = torch.from_numpy(signed["val"].of_class("c7").astype(np.float32))
    found = load_classifier(tmp_path / "c.safetensors").predict(queries, 1)
    assert found == learner.predict(queries, 1)
    assert np.mean([one[0][0] == "c7" for one in found]) > 0.5


def test_imported_rows_of_both_signs_come_back_and_only_what_is_beyond_fp16_is_refused(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float16)
    rows[3, 2] = -65504
    split = actstore.from_arrays(tmp_path / "x.zarr", {"train": (rows, np.arange(40) % 4)}, dtype="f2")["train"]
    np.testing.assert_array_equal(split[:], rows)
    means = [rows[np.arange(40) % 4 == label].astype(np.float64).mean(0) for label in range(4)]
    np.testing.assert_allclose(split.means(), means, rtol=1e-5, atol=1e-4)
    with pytest.raises(actstore.errors.InvalidInputError, match="holds -70000, beyond fp16"):
        wide = np.full((1, 8), -70000, np.float32)
        actstore.from_arrays(tmp_path / "y.zarr", {"train": (wide, np.zeros(1, int))}, dtype="f2")
