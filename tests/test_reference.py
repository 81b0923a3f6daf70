"""docs/reference is of the docstrings as they are."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

MAKE = Path(__file__).parents[1] / "docs" / "reference" / "make.py"


def test_the_reference_is_of_these_docstrings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(MAKE), "--check"])
    made = runpy.run_path(str(MAKE), run_name="__main__")  # ends with an error where a page is out of date
    assert set(made["PACKAGES"]) == {"actstore", "predictor", "baselines"}
