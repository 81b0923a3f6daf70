"""Methods are known by their key, whatever they are called in print."""

from __future__ import annotations

from typing import Any

from baselines.child import Child
from baselines.finetune import FineTuned, FineTunedHead
from baselines.imprint import Imprint
from baselines.oracle import LinearOracle, NearestOracle
from baselines.simple_shot import SimpleShot
from predictor.figures.style import FAMILIES, family_style, short_name
from predictor.protocol.method import Method
from predictor.protocol.results import BY_SHARE, LABELS, key_of


def row_of(method: str, key: str, variant: str = "", share: str = "100%") -> dict[str, Any]:
    return {"method": method, "key": key, "variant": variant, "d_large": share}


def test_the_key_decides_and_not_the_name() -> None:
    method = key_of(row_of("Predicted parameters", "phi2", "calibrated"))
    assert method.is_phi
    assert method.is_calibrated
    assert not key_of(row_of("phi2, calibrated", "mine")).is_phi
    assert short_name(row_of("NN of mine", "nn", share="1%")) == "NN of mine 1%"
    assert short_name(row_of("Fine-Tuned fc (activations)", "finetune")) == "Fine-Tuned fc"


def test_every_known_method_has_a_look() -> None:
    known: list[type[Method]] = [Child, FineTuned, FineTunedHead, Imprint, LinearOracle, NearestOracle, SimpleShot]
    assert set(FAMILIES) == {method.key for method in known} | {*LABELS, *BY_SHARE, Imprint().key}
    assert family_style("class-mean") == family_style("a method of mine")
