"""The classifier that a command reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from predictor.classifier.classifier import Classifier

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT = Path("classifier.safetensors")


def classifier_option(command: Command) -> Command:
    """--classifier, by default classifier.safetensors in the current folder."""
    return click.option("--classifier", type=click.Path(path_type=Path, dir_okay=False), default=DEFAULT,
                        show_default=True, help="A file of `ppa adapt`.")(command)  # fmt: skip


def unknown_option(command: Command) -> Command:
    """--unknown-at, a threshold by hand."""
    return click.option("--unknown-at", type=float, help="Familiarity (a cosine) below which an image is unknown; -1: "
                        "none is.  [default: what 95% of held-out examples reach]")(command)  # fmt: skip


def set_unknown_at(classifier: Classifier, threshold: float | None) -> None:
    """None: as it is."""
    from predictor.classifier.unknown import PHOTOS, Unknown

    if threshold is not None:
        classifier.set_unknown((classifier.unknown or Unknown(PHOTOS)).set_at(threshold))
