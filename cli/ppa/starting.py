"""Where a classifier of `ppa adapt` starts from: phi and its store, the network's own classifier, a network alone, or a
classifier that is there already; and how it learns examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import actstore
from actstore import Split
from actstore.backbones.loading import Backbone
from actstore.errors import InvalidInputError
from actstore.extraction.recorded_network import network_of, record_of
from actstore.storage.place import parse_place
from cli.networks import load_network
from cli.ppa.recognition import choose_categories, store_of
from cli.ppa.start_options import Start
from cli.ppa.support import list_support, require_network, support_from_images
from cli.stores import find_store
from predictor.calibrating import calibrate
from predictor.classifier.base_rows import BaseRows, fit_budget, fit_unknown, measure_base
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import load_classifier
from predictor.classifier.photo_start import (
    BESIDE_KNOWN,
    bias_beside_known,
    choose_bias,
    classifier_alone,
    classifier_beside_known,
)
from predictor.phi.recogniser import OwnClassifier
from predictor.protocol.calibration import Calibration, load_calibrations, nearest_fit
from predictor.protocol.head import read_own_head
from predictor.protocol.rows import class_means
from predictor.protocol.setting import find_test_split, say_means_are_computed
from predictor.training.trained_phi import load_phi

if TYPE_CHECKING:
    from torch import Tensor

MOST_SHOTS = 5  # that a constant is fitted for; with more examples it hardly changes


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
        return _again(load_classifier(start.classifier), start)
    if start.phi is not None:
        return _from_phi(start, start.phi)
    if start.base is not None:
        return _from_head(start)
    return _from_backbone(start)


def _from_phi(start: Start, phi: Path) -> Beginning:
    trained = load_phi(phi)
    rows = actstore.open(store_of(start.store, [trained]))[start.train_split]
    trained.require_store(rows)
    say_means_are_computed(rows)
    base = trained.categories.base
    made = Classifier.from_means(trained.phi, base, class_means(rows, base), about={**_about(rows), "phi": str(phi)})
    fits = load_calibrations(phi if phi.is_dir() else phi.parent)
    return _beside(made, rows, lambda shots: fits)


def _beside(made: Classifier, rows: Split, fits: Callable[[int], Sequence[Calibration]]) -> Beginning:
    """Beside base categories whose rows are at hand: held-out ones where the store has any."""
    held_out = find_test_split(actstore.open(rows.store_path), rows.name, None) or rows
    if not any(name in set(held_out.classes) and len(held_out.of_class(name)) for name in made.base):
        held_out = rows
    made.set_unknown(fit_unknown(made, rows, held_out))
    return Beginning(made, fits, lambda: BaseRows.of(held_out, made.base))


def _again(made: Classifier, start: Start) -> Beginning:
    """A classifier that is there already; the store of its base is where it was, or --store names it."""
    beside_known = bool(made.about.get(BESIDE_KNOWN))
    named = start.store if start.store is not None else made.about.get("store")
    if not made.base or named is None or not parse_place(named).exists():
        return Beginning(made, beside_known=beside_known)

    def read() -> BaseRows:
        store = actstore.open(named)
        rows = find_test_split(store, start.train_split, None) or store[start.train_split]
        require_network(made.about.get("network", {}), rows)  # another store may lie there by now
        return BaseRows.of(rows, made.base)

    return Beginning(made, base_rows=read, beside_known=beside_known)


def _from_head(start: Start) -> Beginning:
    store = actstore.open(find_store(start.store))
    rows = store[start.train_split]
    categories = choose_categories(start.split_file, rows.classes)
    say_means_are_computed(rows)
    centre = class_means(rows, categories.base).mean(0)
    own = read_own_head(rows, categories.base, start.head)
    made = Classifier.from_head(own, categories.base, centre, about=_about(rows))
    return _beside(
        made, rows, lambda shots: calibrate(OwnClassifier(own), store, categories, shots=min(shots, MOST_SHOTS))
    )


def _from_backbone(start: Start) -> Beginning:
    backbone = load_network(start.backbone, start.weights, start.pretrained, start.offline)
    about = {"network": record_of(backbone, start.weights)}
    make = classifier_beside_known if start.keep_known else classifier_alone
    return Beginning(make(backbone, about), backbone=backbone, beside_known=start.keep_known)


def _about(rows: Split) -> dict[str, Any]:
    return {"network": network_of(rows), "store": str(rows.store_path), "content": rows.content}


def examples_of_images(
    beginning: Beginning, weights: Path | None, folder: Path, device: str, on_error: str
) -> dict[str, Tensor]:
    network = beginning.classifier.about.get("network", {})
    support = support_from_images(network, weights, list_support(folder), device, on_error, beginning.backbone)
    if lost := [name for name, (_, images) in support.items() if not images]:
        raise InvalidInputError(f"category {lost[0]!r} has no support left: none of its images could be read")
    return {name: rows for name, (rows, _) in support.items()}


def learn(
    beginning: Beginning, examples: dict[str, Tensor], extend: bool, aggregate: Any, novel_bias: float | None
) -> None:
    """Add the categories; bias and aggregate by hand, else as it was calibrated, else as they are."""
    learner = beginning.classifier
    learner.adapt_all(examples, extend)
    fits = beginning.calibrations(learner.typical_shots()) if novel_bias is None or aggregate is None else []
    fit = nearest_fit(fits, learner.typical_shots()) if fits else None
    aggregate = aggregate or (fit.aggregate if fit else learner.aggregate)
    learner.calibrate(fit.novel_bias if fit else learner.novel_bias, aggregate)
    if novel_bias is not None:
        choose_bias(learner, novel_bias)
    elif beginning.beside_known:
        learner.calibrate(bias_beside_known(learner))
    _ = learner.rows  # predicted here, so that the time says what learning costs


def keep_base(beginning: Beginning, loss: float) -> dict[str, Any]:
    """Set the constant within the budget; returns what it costs beside the one that was there."""
    learner = beginning.classifier
    assert beginning.base_rows is not None
    rows = beginning.base_rows()
    before, kept = measure_base(learner, rows), fit_budget(learner, rows, loss)
    choose_bias(learner, kept.novel_bias)
    return {"base_top1_alone": kept.alone, "base_top1": kept.beside, "base_rows": len(rows.targets),
            "without_budget": {"novel_bias": before.novel_bias, "base_top1": before.beside}}  # fmt: skip
