"""The classifier that a command reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT = Path("classifier.safetensors")


def classifier_option(command: Command) -> Command:
    """--classifier, by default classifier.safetensors in the current folder."""
    return click.option("--classifier", type=click.Path(path_type=Path, dir_okay=False), default=DEFAULT,
                        show_default=True, help="A file of `ppa adapt`.")(command)  # fmt: skip
