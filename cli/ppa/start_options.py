"""Options that say where a classifier of `ppa adapt`, `check` or `teach` starts from."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.options import FILE, PATH, combine
from cli.outputs import claim
from cli.ppa.options import CLASSIFIER_FILE, PHI_RUN, train_split_option
from cli.row_options import DEFAULT_NETWORK, fetching_options, require_fetching_options
from cli.stores import STORE, Place, find_store

if TYPE_CHECKING:
    from predictor import Classifier

WAYS = "--backbone NAME, --phi RUN, --base head or --classifier FILE"

# the fields of `StartOptions`
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
class StartOptions:
    """None of the four ways: from a network that is chosen by default."""

    phi: Path | None = None
    classifier: Path | None = None
    backbone: str | None = None
    base: str | None = None
    head: Path | None = None
    store: Place | None = None
    train: str = "train"
    split_file: Path | None = None
    keep_known: bool = False
    weights: Path | None = None
    pretrained: bool = False
    offline: bool = False

    def __post_init__(self) -> None:
        if sum(way is not None for way in (self.phi, self.classifier, self.backbone, self.base)) > 1:
            raise click.UsageError(f"start from {WAYS}: give one of them")
        require_fetching_options(self.backbone, self.pretrained, self.offline)
        if self.keep_known and not self.is_network:
            raise click.UsageError("--keep-known belongs to --backbone")
        for option, given in (("--head", self.head), ("--split-file", self.split_file)):
            if given and not self.base:
                raise click.UsageError(f"{option} belongs to --base head")
        if self.is_network and self.store is not None:
            raise click.UsageError("a network needs no --store; for a store's categories use --phi or --base head")

    @property
    def is_network(self) -> bool:
        return self.phi is None and self.classifier is None and self.base is None

    def make_classifier(self) -> Classifier:
        import actstore
        import predictor
        from cli.ppa.recognition import choose_categories, store_of

        if self.classifier is not None:
            return predictor.load_classifier(self.classifier)
        if self.phi is not None:
            store = store_of(self.store, [predictor.load_phi(self.phi)])
            return predictor.Classifier.from_phi(self.phi, store=store, split=self.train, progress=True)
        if self.base is not None:
            opened = actstore.open(find_store(self.store))
            chosen = choose_categories(self.split_file, opened[self.train].classes)
            return predictor.Classifier.from_backbone(
                store=opened, categories=chosen, head=self.head, split=self.train, progress=True
            )
        return predictor.Classifier.from_backbone(
            self.backbone, weights=self.weights, keep_known=self.keep_known, pretrained=self.pretrained,
            offline=self.offline, progress=True,
        )  # fmt: skip

    def choose_output(self, out: Path | None, force: bool) -> Path:
        """Where the classifier goes: --classifier alone names what is read and changed in place."""
        read = self.classifier
        if read is not None and (out is None or os.path.realpath(out) == os.path.realpath(read)):
            return read
        target = out or CLASSIFIER_FILE
        way = "--phi" if self.phi else "--base head" if self.base else "--backbone" if self.backbone else ""
        instead = f" in place of {way}" if way else ""
        add = "" if read is not None else f"add to it with --classifier {target}{instead}, "
        advice = f"{add}choose another --out, or replace it with --force"
        claim(target, inputs=[self.phi, read, self.weights, self.head], force=force, advice=advice)
        return target


def say_all(warnings: Iterable[str]) -> None:
    for line in warnings:
        click.echo(line, err=True)
