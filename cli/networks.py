"""Which network reads the images, where a command may be told and need not be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.group import human_bytes
from cli.options import combine
from cli.progress import Bar, progress

if TYPE_CHECKING:
    from actstore.backbones.loading import Backbone
    from actstore.backbones.published import Choice, Telling

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
    """The one asked for, else the one that a file of weights names, else a default."""
    from actstore.backbones.loading import load_backbone, stated_backbone

    name = backbone or (stated_backbone(weights) if weights is not None else None)
    if name is None and weights is not None:
        raise click.UsageError(f"{weights} does not say of which network it is; name that with --backbone")
    name = name or choose_default(offline).name
    fetch_if_asked(name, pretrained)
    return load_backbone(name, weights, pretrained=pretrained)


def choose_default(offline: bool) -> Choice:
    """The network of a command that names none; a line on stderr says which and why."""
    from actstore.backbones.published import default_backbone

    with _shown() as telling:
        choice = default_backbone(offline, telling)
    click.echo(f"network: {choice.name}, as {choice.reason}; choose another with --backbone or --weights", err=True)
    return choice


def fetch_if_asked(backbone: str, pretrained: bool) -> None:
    """Weights of our own networks that --pretrained asks for and that are not at hand, with a bar."""
    from actstore.backbones.loading import fetch_missing
    from actstore.backbones.published import FETCHED

    if pretrained and backbone in FETCHED:
        with _shown() as telling:
            fetch_missing(backbone, telling)


@contextmanager
def _shown() -> Iterator[Telling]:
    """What a download tells, as a line and a bar."""
    from actstore.backbones.published import LICENCE, Telling

    bars: list[Bar] = []
    done = 0
    with ExitStack() as stack:

        def begins(name: str, address: str, size: int) -> None:
            much = human_bytes(size) if size else "size not said"
            click.echo(f"fetching {name} ({much}; {LICENCE}) from {address}", err=True)
            bars.append(stack.enter_context(progress("fetch", size, "bytes")))

        def went_on(now: int, size: int) -> None:
            nonlocal done
            bars[0].update(now - done)
            done = now

        yield Telling(begins, went_on)
