"""Where a classifier starts from: a pretrained network, the own classifier of a store's network, or a trained phi."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actstore import Split
from actstore.errors import InvalidInputError
from actstore.extraction import load_network
from actstore.extraction.recorded_network import network_of, record_of
from actstore.progress import note
from actstore.statistics.class_statistics import has_statistics
from actstore.storage.place import parse_place
from predictor.calibrating import calibrate
from predictor.classifier.background import FEWEST, Background
from predictor.classifier.base_rows import fit_unknown, held_out_rows
from predictor.classifier.classifier import KEEPS_KNOWN, Classifier
from predictor.classifier.unknown import PHOTOS, PHOTOS_KNOWN, Unknown
from predictor.phi.recogniser import OwnClassifier
from predictor.protocol.base_categories import class_means
from predictor.protocol.calibration import Calibration, load_calibrations
from predictor.protocol.category_split import CategorySplit, alphabetical_split, read_split
from predictor.protocol.head import head_of, read_own_head
from predictor.protocol.method import Aggregate
from predictor.protocol.setting import open_store
from predictor.training.trained_phi import TrainedPhi, load_phi, noted_store

if TYPE_CHECKING:
    from actstore.backbones.loading import Backbone
    from predictor.classifier.classifier import FilePath, Store

MOST_SHOTS = 5  # that a constant is fitted for; with more examples it hardly changes


def from_network(
    backbone: str | None, weights: FilePath | None, keep_known: bool, pretrained: bool, offline: bool,
    progress: bool | None,
) -> Classifier:  # fmt: skip
    """Of one's own categories alone, or beside those that the network knows; then its file says so, and with all that
    is learnt later the constant is fitted anew."""
    file = None if weights is None else Path(weights)
    loaded = load_network(backbone, file, pretrained=pretrained, offline=offline, progress=progress)
    about: dict[str, Any] = {"network": record_of(loaded, file)}
    if keep_known:
        head = head_of(loaded)
        names = head.classes or tuple(f"known {row}" for row in range(len(head.weight)))
        about[KEEPS_KNOWN] = True
        classifier = Classifier.from_head(head, names, about=about, unknown=Unknown(PHOTOS, PHOTOS_KNOWN))
    else:
        classifier = Classifier.alone(next(iter(loaded.layers.values())), background_of(loaded), about=about)
    classifier.backbone = loaded
    return classifier


def background_of(network: Backbone) -> Background | None:
    """What it knows by itself; None where that is too little, or it has no classifier."""
    try:
        head = head_of(network)
    except InvalidInputError:
        return None
    if len(head.weight) < FEWEST or head.dim != next(iter(network.layers.values())):
        return None
    return Background(head.weight.half().float(), head.bias.float())  # as its file will hold it


def from_trained_phi(phi: FilePath | TrainedPhi, store: Store | None, split: str, progress: bool | None) -> Classifier:
    trained = phi if isinstance(phi, TrainedPhi) else load_phi(Path(phi))
    folder = trained.path.parent
    if store is None:
        store = noted_store(folder)
        if store is None or not parse_place(store).exists():
            raise InvalidInputError(
                f"the store that {folder} was trained on is not {'known' if store is None else f'at {store}'}; name it"
            )
        note(f"store: {store}, which {folder} was trained on", progress)
    rows = open_store(store)[split]
    trained.require_store(rows)
    means = _means(rows, trained.categories, progress)
    about = {**_about(rows), "phi": str(phi if not isinstance(phi, TrainedPhi) else folder)}
    classifier = Classifier.from_means(trained.phi, trained.categories.base, means, about=about)
    fits = constants(load_calibrations(folder))
    classifier.calibrations = lambda shots: fits
    return _with_base_rows(classifier, rows)


def constants(fits: Sequence[Calibration]) -> dict[int, tuple[Aggregate, float]]:
    """Those that hold, by number of shots."""
    return {fit.shots: (fit.aggregate or "max", fit.novel_bias) for fit in fits if not fit.failed}


def from_own_classifier(
    store: Store, categories: CategorySplit | FilePath | None, head: FilePath | None, split: str, progress: bool | None
) -> Classifier:
    opened = open_store(store)
    rows = opened[split]
    chosen = _categories(categories, rows, progress)
    own = read_own_head(rows, chosen.base, head)
    centre = _means(rows, chosen, progress).mean(0)
    classifier = Classifier.from_head(own, chosen.base, centre, about=_about(rows))

    @cache
    def fit(shots: int) -> Mapping[int, tuple[Aggregate, float]]:
        fits = calibrate(OwnClassifier(own), opened, chosen, shots=shots, train=split, progress=progress)
        return constants(fits)

    classifier.calibrations = lambda shots: fit(min(shots, MOST_SHOTS))
    return _with_base_rows(classifier, rows)


def _with_base_rows(classifier: Classifier, rows: Split) -> Classifier:
    """Beside base categories whose rows are at hand: how familiar their images are is measured."""
    classifier.base_split = rows
    held_out = held_out_rows(rows, classifier.base) or rows
    classifier.set_unknown(fit_unknown(classifier, rows, held_out))
    return classifier


def _about(rows: Split) -> dict[str, Any]:
    return {"network": network_of(rows), "store": str(rows.store_path), "content": rows.content}


def _means(rows: Split, categories: CategorySplit, progress: bool | None) -> Any:
    if not has_statistics(rows):
        note(f"computing the class means of {rows.path} (once)", progress)
    return class_means(rows, categories.base)


def _categories(given: CategorySplit | FilePath | None, rows: Split, progress: bool | None) -> CategorySplit:
    if given is None:
        chosen = alphabetical_split(rows.classes)
        note(f"categories: the first 90% of the class names are the base ({len(chosen.base):,})", progress)
    else:
        chosen = given if isinstance(given, CategorySplit) else read_split(Path(given))
    chosen.require_known(rows.classes)
    return chosen
