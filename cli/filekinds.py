"""Names of kinds of files, which `claim` ignores; for commands that still name them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Kind:
    is_work: bool = False

    def matches(self, path: Path) -> bool:
        """Whether a file may be a split, which `ppa split` asks for."""
        return path.is_file() and b'"novel"' in path.read_bytes()

    def __getitem__(self, _ending: str) -> Kind:
        return self


def __getattr__(name: str) -> Any:
    return Kind(name in ("CLASSIFIER", "SPLIT", "CALIBRATION"))
