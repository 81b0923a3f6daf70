"""Why an answer is what it is: the examples and the base images whose activations are nearest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import actstore
from actstore.errors import ActstoreError
from actstore.images.opening import SplitImages, image_sources
from actstore.split import Split
from predictor.teach.images import thumbnail
from predictor.teach.limits import RefusalError
from predictor.teach.state import State

NEAREST, LOOKED_AT = 4, 256


def nearest_examples(activation: Tensor, state: State, activations: dict[str, Tensor]) -> list[dict[str, Any]]:
    """The taught examples with the highest cosine, the image itself left out. activations: key -> (dim,)."""
    examples = [(name, example) for name, example in state.examples() if example.key in activations]
    if not examples:
        return []
    rows = torch.nn.functional.normalize(torch.stack([activations[one.key] for _, one in examples]), dim=1)
    cosines = rows @ torch.nn.functional.normalize(activation, dim=0)  # (n,)
    order = cosines.argsort(descending=True, stable=True)[:NEAREST].tolist()
    return [
        {"category": examples[place][0], "similarity": float(cosines[place]), **examples[place][1].to_json()}
        for place in order
    ]


class BaseImages:
    """The store that the base categories come from, where it and its images are still at hand."""

    def __init__(self, split: Split, base: Sequence[str]) -> None:
        self._split, self._images, self._base = split, SplitImages(split), frozenset(base)

    def nearest(self, activation: Tensor) -> list[dict[str, Any]]:
        """Of the base categories alone: a store may hold rows of others, which are among those looked at."""
        scores, rows = self._split.search(activation[None].numpy(), k=min(LOOKED_AT, len(self._split)))
        names = [self._split.classes[label] if label >= 0 else "" for label in self._split.labels[rows[0]].tolist()]
        known = [
            {"category": name, "similarity": score, "row": row}
            for name, score, row in zip(names, scores[0].tolist(), rows[0].tolist(), strict=True)
            if name in self._base
        ]
        return known[:NEAREST]

    def thumbnail(self, row: int) -> bytes:
        if not 0 <= row < len(self._split):
            raise RefusalError(404, "there is no such image")
        try:
            return thumbnail(self._images.load(row))
        except (ActstoreError, OSError):
            raise RefusalError(404, "this image is not where the store was built from any more") from None

    def are_at_hand(self) -> bool:
        """Whether an image can be loaded; a few are tried, as some may be gone."""
        for row in {0, len(self._split) // 2, len(self._split) - 1}:
            with suppress(ActstoreError, OSError):
                self._images.load(row)
                return True
        return False


def find_base_images(about: Mapping[str, Any], base: Sequence[str]) -> BaseImages | None:
    """From what a classifier says about itself; None where the store or its images are not there any more."""
    path, content = about.get("store"), about.get("content")
    if not isinstance(path, str) or "://" in path or not Path(path).is_dir():
        return None
    try:
        rows = actstore.open(path)["train"]
        if not base or not len(rows) or rows.content != content or not image_sources(rows):
            return None
        images = BaseImages(rows, base)
        return images if images.are_at_hand() else None
    except (ActstoreError, OSError):
        return None
