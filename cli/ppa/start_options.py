"""Options that say where a classifier of `ppa adapt` starts from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from cli.networks import DEFAULT_NETWORK, fetching_options, require_fetching_options
from cli.options import FILE, PATH, combine
from cli.ppa.options import PHI_RUN, train_split_option
from cli.stores import STORE, Place

WAYS = "--backbone NAME, --phi RUN, --base head or --classifier FILE"

# the fields of `Start`
start_options = combine(
    click.option("--backbone", help="A pretrained network, such as efficientnet-lite0: start from it alone, without "
                 f"phi or store.  {DEFAULT_NETWORK}"),
    click.option("--keep-known", is_flag=True, help="Keep what the network knows beside the new categories."),
    click.option("--weights", type=PATH, help="The backbone's weights, where they have moved or it brings none."),
    fetching_options,
    click.option("--phi", type=PHI_RUN, help="A run of `ppa train`: start from its base categories."),
    click.option("--classifier", type=FILE, help="Add to a classifier that `ppa adapt` wrote; without --out this very "
                 "file is changed."),
    click.option("--store", type=STORE, help="Of the base categories, with --phi or --base head.  [default: the one "
                 "phi was trained on, $ACTSTORE, or the one *.zarr here]"),
    train_split_option("Of the base categories."),
    click.option("--base", type=click.Choice(["head"]),
                 help="head: the network's own classifier of a store's base categories, without phi."),
    click.option("--head", type=FILE, help="With --base head.  [default: that of the store's own network]"),
    click.option("--split-file", type=FILE, help="With --base head: its categories, see `ppa split`."),
)  # fmt: skip


@dataclass(frozen=True)
class Start:
    """What the options say. None of the four ways: from a network that is chosen by default."""

    phi: Path | None = None
    classifier: Path | None = None
    backbone: str | None = None
    base: str | None = None
    head: Path | None = None
    store: Place | None = None
    train_split: str = "train"
    split_file: Path | None = None
    keep_known: bool = False
    weights: Path | None = None
    pretrained: bool = False
    offline: bool = False

    def __post_init__(self) -> None:
        ways = [self.phi, self.classifier, self.backbone, self.base]
        if sum(way is not None for way in ways) > 1:
            raise click.UsageError(f"start from {WAYS}: give one of them")
        require_fetching_options(self.backbone, self.pretrained, self.offline)
        for option, given, of, has in (
            ("--keep-known", self.keep_known, "--backbone", self.is_network),
            ("--head", self.head, "--base head", self.base),
            ("--split-file", self.split_file, "--base head", self.base),
        ):
            if given and not has:
                raise click.UsageError(f"{option} belongs to {of}")
        if self.is_network and self.store is not None:
            raise click.UsageError("a network needs no --store; for a store's categories use --phi or --base head")

    @property
    def is_network(self) -> bool:
        return self.phi is None and self.classifier is None and self.base is None

    @property
    def way(self) -> str:
        """The option to leave out in favour of another way."""
        return "--phi" if self.phi is not None else "--base head" if self.base is not None else "--backbone"
