"""Writes docs/reference/*.md from the docstrings of the three packages: `python docs/reference/make.py`."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PACKAGES = ("actstore", "predictor", "baselines")
WITHOUT_MEMBERS = (BaseException,)


def page(package: str) -> str:
    module = importlib.import_module(package)
    parts = [f"# `{package}`\n\n```python\n{inspect.getdoc(module)}\n```"]
    parts += [entry(name, getattr(module, name)) for name in module.__all__ if not name.startswith("_")]
    return "\n\n".join(parts) + "\n"


def entry(name: str, value: Any) -> str:
    if not callable(value):
        return f"## {name}\n\n`{tuple(value)!r}`"  # of settings by name, the names
    text = f"## {name}\n\n{described(name, value)}"
    if inspect.isclass(value) and not issubclass(value, WITHOUT_MEMBERS):
        for member in members(value):
            text += f"\n\n### {name}.{member}\n\n{described(member, getattr(value, member))}"
    return text


def members(kind: type) -> list[str]:
    """Public methods and properties with a docstring, in the order of the source, inherited ones last."""
    found: dict[str, None] = {}
    for one in kind.__mro__:
        if one.__module__.split(".")[0] in PACKAGES:
            found |= dict.fromkeys(name for name in vars(one) if not name.startswith("_"))
    return [name for name in found if inspect.getdoc(getattr(kind, name, None)) and is_ours(kind, name)]


def is_ours(kind: type, name: str) -> bool:
    value = inspect.getattr_static(kind, name)
    return isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)


def described(name: str, value: Any) -> str:
    signature = ""
    if not isinstance(value, property):
        try:
            plain = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(value)))  # annotations are text
            signature = f"```python\n{name}{plain}\n```\n\n"
        except (TypeError, ValueError):
            signature = ""
    return f"{signature}{inspect.getdoc(value) or ''}".rstrip()


if __name__ == "__main__":
    for package in PACKAGES:
        text = page(package)
        if "--check" not in sys.argv:
            (HERE / f"{package}.md").write_text(text)
        elif (HERE / f"{package}.md").read_text() != text:
            raise SystemExit(
                f"docs/reference/{package}.md is not of these docstrings; run python docs/reference/make.py"
            )
