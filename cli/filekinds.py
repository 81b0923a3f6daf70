"""Names of kinds of files, which `claim` ignores; for commands that still name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    is_work: bool = False

    def __getitem__(self, _ending: str) -> Kind:
        return self


def __getattr__(name: str) -> Any:
    return Kind(name in ("CLASSIFIER", "SPLIT", "CALIBRATION"))
