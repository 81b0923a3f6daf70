from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Run = Callable[..., Any]


@pytest.fixture
def head(here: Path) -> Path:
    np.savez("head.npz", fc_weight=np.random.default_rng(0).standard_normal((7, 16)), fc_bias=np.zeros(7))
    return here / "head.npz"


def test_phi_beside_the_networks_classifier(here: Path, ppa: Run, head: Path) -> None:
    found = json.loads(ppa("analyse", "--phi", "runs/phi1", "--head", head, "--json").stdout)
    assert found["phi"] == "phi1"
    assert 0 < found["diagonal_min"] <= found["diagonal_max"] < 1.5
    assert len(found["similarity_curve"]) == 16
    assert found["similarity_curve"][-1] == 1
    shown = ppa("analyse", "--head", head).stdout  # runs/phi1 is the default
    lines = {line.split("  ")[0]: line.split() for line in shown.splitlines()}
    assert lines["smallest on phi's diagonal"][-2:] == [f"{found['diagonal_min']:.4g}", "0.744"]
    assert "OS(phi, w, k)" in shown
    assert lines["10"] == ["10", f"{found['top_k_similarity']['10']:.3f}", "0.625"]


def test_without_a_head_and_for_phi2(here: Path, ppa: Run) -> None:
    shown = ppa("analyse", "--phi", "runs/phi2").stdout
    assert "OS(phi, w, k)" not in shown
    assert "0.744" not in shown  # the paper's figures are of phi1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--phi", "runs/absent"], "no trained phi at runs/absent"),
        (["--head", "absent.npz"], "no head file at absent.npz"),
        (["--head", "short.npz"], "the head has 3 rows without names, the split 7 base classes"),
        (["--head", "wide.npz"], "the head reads activations of dim 20, the store's have 16"),
    ],
)
def test_bad_input(here: Path, ppa: Run, arguments: list[str], message: str) -> None:
    np.savez("short.npz", fc_weight=np.ones((3, 16)), fc_bias=np.zeros(3))
    np.savez("wide.npz", fc_weight=np.ones((7, 20)), fc_bias=np.zeros(7))
    assert message in ppa("analyse", *arguments, code=1).stderr
