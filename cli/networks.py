"""Which network reads the images, where a command may be told and need not be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.options import combine

if TYPE_CHECKING:
    from actstore.backbones import Backbone, Choice

DEFAULT_NETWORK = "[default: resnet50 if it is at hand or can be fetched, else efficientnet-lite0]"

fetching_options = combine(
    click.option("--pretrained", is_flag=True, help="Fetch the weights of --backbone, if it is resnet50, resnet18, "
                 "timm:NAME or torchvision:NAME."),
    click.option("--offline", is_flag=True, help="Fetch nothing: a network that is on this machine.  [default: "
                 "$ACTSTORE_OFFLINE]"),
)  # fmt: skip


def require_fetching_options(backbone: str | None, pretrained: bool, offline: bool) -> None:
    if pretrained and backbone is None:
        raise click.UsageError("--pretrained belongs to --backbone")
    if pretrained and offline:
        raise click.UsageError("--pretrained fetches weights and --offline forbids it; choose one")


def load_network(backbone: str | None, weights: Path | None, pretrained: bool, offline: bool) -> Backbone:
    """The one asked for, else the one that a file of weights names, else a default, which is said on stderr."""
    from actstore.extraction import load_network as load

    return load(backbone, weights, pretrained=pretrained, offline=offline, progress=True)


def choose_default(offline: bool) -> Choice:
    """The network of a command that names none; a line on stderr says which and why."""
    from actstore.extraction import choose_network

    return choose_network(offline, progress=True)
