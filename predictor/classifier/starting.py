"""Where a classifier starts from: a pretrained network, the own classifier of a store's network, or a trained phi.

Beside base categories whose rows are at hand these tell how familiar known images are, and what the base loses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import actstore
from actstore.errors import InvalidInputError
from actstore.extraction import load_network
from actstore.extraction.forward import network_of, record_of
from actstore.progress import note
from actstore.split import Split
from actstore.storage.place import parse_place
from actstore.streams.sampling import draw_support
from predictor.calibrating import calibrate
from predictor.classifier.activation_classifier import KEEPS_KNOWN
from predictor.classifier.classifier import Classifier
from predictor.classifier.photos import require_network
from predictor.classifier.unknown import FEWEST, LOWEST, PHOTOS, PHOTOS_KNOWN, SHARE, Background, Unknown
from predictor.phi.rule import OwnClassifier
from predictor.protocol.base_categories import class_means, rows_of, take_float
from predictor.protocol.calibration import Calibration, load_calibrations
from predictor.protocol.category_split import CategorySplit, alphabetical_split, as_categories
from predictor.protocol.head import head_of, read_own_head
from predictor.protocol.method import Aggregate
from predictor.protocol.setting import find_test_split, open_store, say_means_are_computed
from predictor.training.trained_phi import TrainedPhi, load_phi, noted_store

if TYPE_CHECKING:
    from actstore.backbones.loading import Backbone
    from predictor.classifier.classifier import FilePath, Store

MOST_SHOTS = 5  # that a constant is fitted for; with more examples it hardly changes
MOST_ROWS = 4000
SHOTS = (1, 2, 3, 5, 10)
WAY, DRAWS, QUERIES = 10, 5, 20  # categories of a draw that stand in for taught ones, draws, held-out rows of each


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
    say_means_are_computed(rows, progress)
    means = class_means(rows, trained.categories.base)
    about = {**_about(rows), "phi": str(phi if not isinstance(phi, TrainedPhi) else folder)}
    classifier = Classifier.from_means(trained.phi, trained.categories.base, means, about=about)
    fits = constants(_kept_for(trained, rows, progress))
    classifier.calibrations = lambda shots: fits
    return _with_base_rows(classifier, rows)


def _kept_for(trained: TrainedPhi, rows: Split, progress: bool | None) -> list[Calibration]:
    """Beside phi, and fitted on these rows or the first of them."""
    folder, method = trained.path.parent, trained.as_method()
    kept = load_calibrations(folder)
    ours = [fit for fit in kept if fit.is_of(method, rows, trained.categories)]
    if kept and not ours:
        note(f"without a constant: those in {folder} were fitted on other rows than {rows.path}", progress)
    return ours


def constants(fits: Sequence[Calibration]) -> dict[int, tuple[Aggregate, float]]:
    """Those that help, by number of shots."""
    return {fit.shots: (fit.aggregate or "max", fit.novel_bias) for fit in fits if fit.helps}


def from_own_classifier(
    store: Store, categories: CategorySplit | FilePath | None, head: FilePath | None, split: str, progress: bool | None
) -> Classifier:
    opened = open_store(store)
    rows = opened[split]
    chosen = _categories(categories, rows, progress)
    own = read_own_head(rows, chosen.base, head)
    say_means_are_computed(rows, progress)
    centre = class_means(rows, chosen.base).mean(0)
    classifier = Classifier.from_head(own, chosen.base, centre, about=_about(rows))

    @cache
    def fit(shots: int) -> Mapping[int, tuple[Aggregate, float]]:
        fits = calibrate(OwnClassifier(own), opened, chosen, shots=shots, train=split, save=False, progress=progress)
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


def _categories(given: CategorySplit | FilePath | None, rows: Split, progress: bool | None) -> CategorySplit:
    if given is None:
        chosen = alphabetical_split(rows.classes)
        note(f"categories: the first 90% of the class names are the base ({len(chosen.base):,})", progress)
    else:
        chosen = as_categories(given)
    chosen.require_known(rows.classes)
    return chosen


def base_rows(split: Split, base: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Activations (n, dim) of the base categories that a split holds, and their places among them (n,)."""
    known = [name for name in base if name in set(split.classes)]
    rows, targets = rows_of(split, known, MOST_ROWS)
    if not len(rows):
        raise InvalidInputError(f"{split.path} holds no row of a base category; name another split")
    places = np.array([base.index(name) for name in known])
    return take_float(split, rows), torch.from_numpy(places[targets])


def fit_unknown(classifier: Classifier, train: Split, held_out: Split) -> Unknown:
    """How familiar images of base categories are: with the base's own rows, and where they are learnt from a few
    examples of `train` as if they were new."""
    activations, _ = base_rows(held_out, classifier.base)
    cosines = classifier.cosines(activations)[:, : len(classifier.base)].amax(1)
    lowest = float(torch.quantile(cosines, 1 - SHARE))
    index = train.class_index
    labels = np.array([index.position(name) for name in classifier.base])
    prior = {}
    for shots in SHOTS:
        enough = labels[index.counts[labels] > shots + 1]
        if len(enough):
            familiarity = torch.cat([_stand_in(classifier, train, enough, shots, draw) for draw in range(DRAWS)])
            mean, low = float(familiarity.mean()), float(torch.quantile(familiarity, 1 - SHARE))
            prior[shots] = (mean, max((mean - low) / LOWEST, 1e-3))
    return Unknown(prior or {1: (lowest, 0.0)}, lowest)


def _stand_in(classifier: Classifier, train: Split, labels: NDArray[np.int64], shots: int, draw: int) -> Tensor:
    """(n,) familiarity of rows of base categories that another classifier learns from others of their rows."""
    random = np.random.default_rng([0, shots, draw])
    taught = np.sort(random.choice(labels, min(WAY, len(labels)), replace=False))
    rows = draw_support(train.class_index, taught, shots, 0, draw)
    learner = Classifier(classifier.rule, aggregate=classifier.aggregate)
    examples = take_float(train, rows.ravel()).reshape(*rows.shape, train.dim)
    learner.adapt_all({str(place): part for place, part in enumerate(examples)})
    fresh = []
    for place, label in enumerate(taught):
        rest = np.setdiff1d(train.class_index.rows(int(label)), rows[place])
        fresh.append(random.choice(rest, min(QUERIES, len(rest)), replace=False))
    return learner.familiarity(take_float(train, np.sort(np.concatenate(fresh))))


@dataclass(frozen=True)
class BaseLoss:
    """What taught categories cost the base.

    Attributes:
        novel_bias: the constant on the scores of taught categories.
        alone: top-1 accuracy of the base in percent, without taught categories.
        beside: the same beside them.
        rows: on how many rows of the base it was measured.
        before: the same with the constant that was there.
    """

    novel_bias: float
    alone: float
    beside: float
    rows: int
    before: BaseLoss | None = None

    @classmethod
    def at(cls, novel_bias: float, limits: NDArray[np.float64]) -> Self:
        """limits: see `base_limits`."""
        count = max(1, len(limits))
        alone, beside = 100 * float((limits > -np.inf).sum()) / count, 100 * float((limits >= novel_bias).sum()) / count
        return cls(novel_bias, alone, beside, len(limits))

    @property
    def loss(self) -> float:
        return self.alone - self.beside

    @property
    def summary(self) -> str:
        text = f"the base has {self.beside:.2f}% top-1 beside them, {self.alone:.2f}% alone ({self.rows:,} rows)"
        if self.before is None:
            return text
        constant = f"the constant for the best harmonic mean, {self.before.novel_bias:g}"
        return f"{text}; {constant}, would leave it {self.before.beside:.2f}%"

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"base_top1_alone": self.alone, "base_top1": self.beside, "base_rows": self.rows}
        if self.before is not None:
            data["without_budget"] = {"novel_bias": self.before.novel_bias, "base_top1": self.before.beside}
        return data


def held_out_rows(train: Split, names: Sequence[str] | None = None) -> Split | None:
    """Rows that were not trained on: val or test of the same store, where it holds any of these categories."""
    store = actstore.open(train.store_path)
    found = find_test_split(store, train.name)
    if found is None or names is None:
        return found
    known = set(found.classes)
    return found if any(name in known and len(found.of_class(name)) for name in names) else None


def limit_base_loss(classifier: Classifier, percent: float, store: Store | None, split: str) -> BaseLoss:
    """Choose the constant by its cost, measured on the base's own rows."""
    if not classifier.base:
        raise InvalidInputError("this classifier knows no base category, so none can lose accuracy")
    train = find_base_split(classifier, store, split)
    if train is None:
        raise InvalidInputError("the loss of the base is measured on its rows: name the store that has them")
    limits = base_limits(classifier, *base_rows(held_out_rows(train, classifier.base) or train, classifier.base))
    before = BaseLoss.at(classifier.novel_bias, limits)
    classifier.calibrate(highest_constant(classifier, limits, percent))
    return replace(BaseLoss.at(classifier.novel_bias, limits), before=before)


def find_base_split(classifier: Classifier, store: Store | None = None, split: str = "train") -> Split | None:
    """In the store that is named, else in the one that the classifier was made with; None where there is none."""
    if store is None and classifier.base_split is not None:
        return classifier.base_split
    named = store if store is not None else classifier.about.get("store")
    if not classifier.base or named is None:
        return None
    if not isinstance(named, actstore.ActivationStore):
        if not parse_place(named).exists():
            return None
        named = actstore.open(named)
    require_network(classifier, named[split])  # another store may lie there by now
    return named[split]


def base_limits(classifier: Classifier, activations: Tensor, targets: Tensor) -> NDArray[np.float64]:
    """(n,): the constant up to which a row is recognised, -inf where it is not among the base alone."""
    first = len(classifier.base)
    scores = classifier.scores(activations).double()
    true = scores.gather(1, targets[:, None])[:, 0]
    is_right = scores[:, :first].argmax(1) == targets
    novel = scores[:, first:].amax(1) - classifier.novel_bias if scores.shape[1] > first else true - torch.inf
    return torch.where(is_right, true - novel, -torch.inf).numpy()


def highest_constant(classifier: Classifier, limits: NDArray[np.float64], percent: float) -> float:
    """With which the base loses at most so many percent points of its top-1."""
    if not 0 <= percent <= 100:
        raise InvalidInputError(f"the loss of the base must be from 0% to 100%, got {percent:g}%")
    if not classifier.support:
        raise InvalidInputError("no category was taught yet, so the base loses nothing; teach one first")
    right = np.sort(limits[limits > -np.inf])
    if not len(right):
        raise InvalidInputError("the base recognises none of its own rows, so there is nothing to lose")
    return float(right[min(int(percent / 100 * len(limits) + 1e-9), len(right) - 1)])
