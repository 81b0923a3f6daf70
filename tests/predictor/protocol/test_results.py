"""Methods are known by their key; by their name only in tables of an earlier release."""

from __future__ import annotations

from typing import Any

import pytest

from baselines.child import Child
from baselines.class_mean import ClassMean
from baselines.finetune import FineTuned, FineTunedHead
from baselines.imprint import Imprint
from baselines.oracle import LinearOracle, NearestOracle
from predictor.figures.style import FAMILIES, family_style, short_name
from predictor.protocol.results import BY_SHARE, LABELS, NAMES_BEFORE_KEYS, MethodKey, key_of


def earlier(method: str, share: str = "100%") -> dict[str, Any]:
    return {"method": method, "d_large": share}


@pytest.mark.parametrize("method", [Child, ClassMean, FineTuned, FineTunedHead, Imprint, LinearOracle, NearestOracle])
def test_a_name_of_an_earlier_release_leads_to_the_same_key(method: Any) -> None:
    assert key_of(earlier(method.name)).key == method.key


@pytest.mark.parametrize(
    ("name", "key", "variant"),
    [
        ("phi2", "phi2", ""),
        ("phi2*", "phi2star", ""),
        ("phi2*, calibrated", "phi2star", "calibrated"),
        ("phi1, mean, bias 3", "phi1", "mean, bias 3"),
        ("Triplet (images)", "triplet-images", ""),
        ("a method of mine", "a method of mine", ""),
    ],
)
def test_names_of_an_earlier_release(name: str, key: str, variant: str) -> None:
    assert key_of(earlier(name, "10%")) == MethodKey(key, variant, "10%")


def test_the_key_decides_and_not_the_name() -> None:
    row = {**earlier("Predicted parameters"), "key": "phi2", "variant": "calibrated"}
    method = key_of(row)
    assert method.is_phi
    assert method.is_calibrated
    assert not key_of({**earlier("phi2, calibrated"), "key": "mine", "variant": ""}).is_phi
    assert short_name({**earlier("NN of mine", "1%"), "key": "nn", "variant": ""}) == "NN of mine 1%"
    assert short_name(earlier("Fine-Tuned fc (activations)")) == "Fine-Tuned fc"


def test_every_known_method_has_a_look() -> None:
    assert set(FAMILIES) == {*NAMES_BEFORE_KEYS.values(), "simple-shot"} - {"class-mean"}
    assert {*LABELS, *BY_SHARE} <= set(FAMILIES)
    assert family_style("class-mean") == family_style("a method of mine")
