"""Labels in a file of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.actstore.tables.array_examples import LABELS


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.npy"
    np.save(path, LABELS)
    return path
