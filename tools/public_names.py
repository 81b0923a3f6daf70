"""What the documentation shows of a package (`extensions` in mkdocs.yml)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from griffe import Extension, Module


class PublicNames(Extension):
    """The names that `lazily` finds, which no list in the code repeats."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        pkg.exports = list(import_module(pkg.path).__all__)
