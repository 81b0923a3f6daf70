"""Why an answer is what it is: the examples and the base images whose activations are nearest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import actstore
from actstore.errors import ActstoreError
from actstore.images.opening import open_images
from actstore.split import Split
from predictor.teach.images import thumbnail
from predictor.teach.refusal import RefusalError
from predictor.teach.state import State

NEAREST, LOOKED_AT = 4, 256


def nearest_examples(activation: Tensor, state: State, activations: dict[str, Tensor]) -> list[dict[str, Any]]:
    """The taught examples with the highest cosine, the image itself left out. activations: key -> (dim,)."""
    examples = [(category.name, one) for category in state for one in category.examples if one.key in activations]
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
        self._split, self._base = split, frozenset(base)

    def nearest(self, activation: Tensor) -> list[dict[str, Any]]:
        """Of the base categories alone: a store may hold rows of others, which are among those looked at."""
        scores, rows = self._split.search(activation[None].numpy(), k=min(LOOKED_AT, len(self._split)))
        names = [self._split.classes[label] if label >= 0 else "" for label in self._split.labels[rows[0]].tolist()]
        found = [
            {"category": name, "similarity": score, "row": row}
            for name, score, row in zip(names, scores[0].tolist(), rows[0].tolist(), strict=True)
            if name in self._base
        ]
        return found[:NEAREST]

    def thumbnail(self, row: int) -> bytes:
        if not 0 <= row < len(self._split):
            raise RefusalError(404, "there is no such image")
        item = self._items.get(self._split.ids[row])
        if item is None:
            raise RefusalError(404, "this image is not where the store was built from any more")
        return thumbnail(item.load())

    @cached_property
    def _items(self) -> dict[str, Any]:
        source = next(one for one in reversed(self._split.committed.sources) if one.get("kind") == "images")
        return {item.id: item for item in open_images(str(source["path"]))[self._split.name].items}


def find_base_images(about: Mapping[str, Any], base: Sequence[str], split: str = "train") -> BaseImages | None:
    """From what a classifier says about itself; None where the store or its images are not there any more."""
    path, content = about.get("store"), about.get("content")
    if not isinstance(path, str) or "://" in path or not Path(path).is_dir():
        return None
    try:
        rows = actstore.open(path)[split]
        found = BaseImages(rows, base)
        if (
            not base
            or rows.content != content
            or not any(one.get("kind") == "images" for one in rows.committed.sources)
        ):
            return None
        return found if found._items else None
    except (ActstoreError, OSError):
        return None
