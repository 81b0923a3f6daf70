"""Names of a package that are imported when they are first used: `--help` and readers of rows wait for no torch."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Any


def lazily(package: str, **homes: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`. homes: a module of it, and the names to be taken from there;
    `__` stands for a dot."""
    modules = {name: module.replace("__", ".") for module, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in modules:
            close = get_close_matches(name, modules, n=1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{meant}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    def names() -> list[str]:
        own = {name for name in vars(import_module(package)) if name not in ("TYPE_CHECKING", "annotations", "lazily")}
        return sorted({*own, *modules})

    return get, names
