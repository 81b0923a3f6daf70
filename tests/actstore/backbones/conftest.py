"""An empty cache of downloads, and a small network."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from actstore.backbones.construction import build_network


@pytest.fixture(autouse=True)
def empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """torch's cache of downloads: an empty one."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    folder = tmp_path / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def small() -> nn.Module:
    return build_network("small", num_classes=7, seed=3)
