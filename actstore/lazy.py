"""Names of a package that are imported when they are first used: `--help` and readers of rows wait for no torch."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Any


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`, for the names that it imports `if TYPE_CHECKING`. They are found in its
    code, so that each is written once; `__all__` is made of them where the package has none."""
    module = sys.modules[package]
    loader: Any = module.__spec__ and module.__spec__.loader
    homes: dict[str, str] = {}
    home = ""
    for step in dis.get_instructions(loader.get_code(package)):
        if step.opname == "IMPORT_NAME":
            home = step.argval
        elif step.opname == "IMPORT_FROM" and step.argval not in vars(module):
            homes[step.argval] = home
    vars(module).setdefault("__all__", sorted(homes))

    def get(name: str) -> Any:
        if name not in homes:
            close = get_close_matches(name, homes, n=1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{meant}")
        return getattr(import_module(homes[name]), name)

    def names() -> list[str]:
        return sorted({*homes, *vars(module)} - {"TYPE_CHECKING", "annotations", "lazily"})

    return get, names
