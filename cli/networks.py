"""Which network reads the images, where a command may be told and need not be."""

from __future__ import annotations

import click

from cli.options import combine

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
