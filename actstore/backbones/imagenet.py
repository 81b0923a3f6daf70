"""ImageNet's 1,000 categories (ILSVRC 2012), in the order in which every published classifier has them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def imagenet_names() -> dict[str, str]:
    """WNID -> English name: WordNet's first word for it, made distinct where two share one (crane, maillot)."""
    text = files("actstore.backbones").joinpath("imagenet_categories.txt").read_text(encoding="utf-8")
    return dict(line.split(" ", 1) for line in text.splitlines())


def imagenet_wnids() -> tuple[str, ...]:
    """Sorted, as the rows of a classifier are."""
    return tuple(imagenet_names())
