"""Where a classifier of `ppa adapt` starts from: phi and its store, the network's own classifier, a network alone, or a
classifier that is there already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.options import STORE, find_store
from cli.ppa.own_classifier import fit_own, read_own
from cli.ppa.recognition import choose_categories, find_test_split, say_means_are_computed
from cli.ppa.support import require_network

if TYPE_CHECKING:
    from actstore import Split
    from actstore.backbones.loading import Backbone
    from actstore.storage.place import Place
    from predictor.classifier.base_rows import BaseRows
    from predictor.classifier.classifier import Classifier
    from predictor.phi.calibration import Calibration
    from predictor.training.trained_phi import TrainedPhi

MOST_SHOTS = 5  # that a constant is fitted for; with more examples it hardly changes
WAYS = "--backbone NAME, --phi RUN, --base head or --classifier FILE"


Command = TypeVar("Command", bound=Callable[..., Any])


def start_options(command: Command) -> Command:
    """The fields of `Start`."""
    path = click.Path(path_type=Path, dir_okay=False)
    for option in (
        click.option("--split-file", type=path, help="With --base head: its categories, see `ppa split`."),
        click.option("--head", type=path, help="With --base head.  [default: that of the store's own network]"),
        click.option("--base", type=click.Choice(["head"]),
                     help="head: the network's own classifier of a store's base categories, without phi."),
        click.option("--split", "train_split", default="train", show_default=True, help="Of the base categories."),
        click.option("--store", type=STORE, help="Of the base categories, with --phi or --base head.  "
                     "[default: the one phi was trained on, $ACTSTORE, or the one *.zarr here]"),
        click.option("--classifier", type=path, help="Add to a classifier that `ppa adapt` wrote; without --out this "
                     "very file is changed."),
        click.option("--phi", type=click.Path(path_type=Path),
                     help="A run of `ppa train`: start from its base categories."),
        click.option("--pretrained", is_flag=True, help="Let timm or torchvision fetch the weights of --backbone."),
        click.option("--weights", type=click.Path(path_type=Path),
                     help="The backbone's weights, where they have moved or it brings none."),
        click.option("--keep-known", is_flag=True, help="Keep what --backbone knows beside the new categories."),
        click.option("--backbone", help="A pretrained network, such as efficientnet-lite0: start from it alone, "
                     "without phi or store."),
    ):  # fmt: skip
        command = option(command)
    return command


@dataclass(frozen=True)
class Start:
    """What the options say."""

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

    def __post_init__(self) -> None:
        ways = [self.phi, self.classifier, self.backbone, self.base]
        if sum(way is not None for way in ways) != 1:
            raise click.UsageError(f"start from {WAYS}: give one of them")
        for option, given, of, has in (
            ("--keep-known", self.keep_known, "--backbone", self.backbone),
            ("--pretrained", self.pretrained, "--backbone", self.backbone),
            ("--head", self.head, "--base head", self.base),
            ("--split-file", self.split_file, "--base head", self.base),
        ):
            if given and not has:
                raise click.UsageError(f"{option} belongs to {of}")
        if self.backbone is not None and self.store is not None:
            raise click.UsageError(
                "--backbone needs no --store; for a store's categories start from --phi or --base head"
            )

    @property
    def way(self) -> str:
        return "--phi" if self.phi is not None else "--backbone" if self.backbone is not None else "--base head"


@dataclass(frozen=True)
class Beginning:
    """A classifier that has learnt nothing new yet.

    calibrations: number of examples -> what was fitted for the constant, if anything. base_rows: those of its base
    categories to measure on, None where no store is at hand. backbone: the network, where it is loaded already.
    """

    classifier: Classifier
    calibrations: Callable[[int], Sequence[Calibration]] = lambda shots: []
    base_rows: Callable[[], BaseRows] | None = None
    backbone: Backbone | None = None
    beside_known: bool = False


def begin(start: Start) -> Beginning:
    if start.classifier is not None:
        from predictor.classifier.classifier_file import load_classifier

        return _again(load_classifier(start.classifier), start)
    if start.phi is not None:
        return _from_phi(start, start.phi)
    if start.base is not None:
        return _from_head(start)
    return _from_backbone(start)


def _from_phi(start: Start, phi: Path) -> Beginning:
    from predictor.classifier.classifier import Classifier
    from predictor.phi.calibration import load_calibrations
    from predictor.protocol.evaluation import class_means
    from predictor.training.trained_phi import load_phi

    trained = load_phi(phi)
    rows = _open(start.store or store_of(trained), start.train_split)
    trained.require_store(rows)
    say_means_are_computed(rows)
    base = trained.categories.base
    made = Classifier.from_means(trained.phi, base, class_means(rows, base), about={**_about(rows), "phi": str(phi)})
    fits = load_calibrations(phi if phi.is_dir() else phi.parent)
    return _beside(made, rows, lambda shots: fits)


def _beside(made: Classifier, rows: Split, fits: Callable[[int], Sequence[Calibration]]) -> Beginning:
    """Beside base categories whose rows are at hand: held-out ones where the store has any."""
    import actstore
    from predictor.classifier.base_rows import BaseRows, fit_unknown

    held_out = find_test_split(actstore.open(rows.store_path), rows.name, None) or rows
    if not any(name in set(held_out.classes) and len(held_out.of_class(name)) for name in made.base):
        held_out = rows
    made.set_unknown(fit_unknown(made, rows, held_out))
    return Beginning(made, fits, lambda: BaseRows.of(held_out, made.base))


def _again(made: Classifier, start: Start) -> Beginning:
    """A classifier that is there already; the store of its base is where it was, or --store names it."""
    from actstore.storage.place import parse_place
    from predictor.classifier.base_rows import BaseRows
    from predictor.classifier.photo_start import BESIDE_KNOWN

    beside_known = bool(made.about.get(BESIDE_KNOWN))
    named = start.store if start.store is not None else made.about.get("store")
    if not made.base or named is None or not parse_place(named).exists():
        return Beginning(made, beside_known=beside_known)

    def read() -> BaseRows:
        import actstore

        store = actstore.open(named)
        rows = find_test_split(store, start.train_split, None) or store[start.train_split]
        require_network(made.about.get("network", {}), rows)  # another store may lie there by now
        return BaseRows.of(rows, made.base)

    return Beginning(made, base_rows=read, beside_known=beside_known)


def store_of(trained: TrainedPhi) -> Place:
    """The store that phi was trained on, where it still lies there; else as elsewhere."""
    from actstore.storage.place import parse_place
    from predictor.training.trained_phi import noted_store

    named = noted_store(trained.path.parent)
    return find_store(None) if named is None or not parse_place(named).exists() else parse_place(named)


def _from_head(start: Start) -> Beginning:
    import actstore
    from predictor.classifier.classifier import Classifier
    from predictor.protocol.evaluation import class_means

    rows = _open(find_store(start.store), start.train_split)
    categories = choose_categories(start.split_file, rows.classes)
    say_means_are_computed(rows)
    centre = class_means(rows, categories.base).mean(0)
    own = read_own(start.head, categories, rows)
    made = Classifier.from_head(own, categories.base, centre, about=_about(rows))

    store = actstore.open(rows.store_path)
    return _beside(made, rows, lambda shots: fit_own(own, store, rows, categories, [min(shots, MOST_SHOTS)]))


def _from_backbone(start: Start) -> Beginning:
    from actstore.backbones.loading import load_backbone
    from actstore.extraction.recorded_network import record_of
    from predictor.classifier.photo_start import classifier_alone, classifier_beside_known

    assert start.backbone is not None
    backbone = load_backbone(start.backbone, start.weights, pretrained=start.pretrained)
    about = {"network": record_of(backbone, start.weights)}
    make = classifier_beside_known if start.keep_known else classifier_alone
    return Beginning(make(backbone, about), backbone=backbone, beside_known=start.keep_known)


def _open(store: Place, split: str) -> Split:
    import actstore

    return actstore.open(store)[split]


def _about(rows: Split) -> dict[str, Any]:
    from actstore.extraction.recorded_network import network_of

    return {"network": network_of(rows), "store": str(rows.store_path), "content": rows.content}
