"""What a reader must know of the images that are tested: which split they are of, how many there are, and of which
categories there are none or hardly any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from actstore import ActivationStore, Split
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.episodes import Examples

FEW = 3  # fewer images of a category than this tell next to nothing about it


def describe_test(store: ActivationStore, test: Split, train: str, categories: CategorySplit) -> str:
    """In one line: the split, how many images it has, and which other splits could be tested on."""
    parts = (("base", categories.base), ("novel", categories.novel))
    counts = " and ".join(f"{int(_counts(test, names).sum()):,} of {part}" for part, names in parts)
    others = [name for name in store.splits if name not in (train, test.name) and is_labelled(store[name])]
    choice = f"; test on {' or '.join(others)} with test=… (--test-split)" if others else ""
    return f"test images: {counts} categories, from split {test.name}{choice}"


def thin_categories(test: Split, categories: CategorySplit) -> list[str]:
    """A line about the base, and one about the novel categories, where some have too few test images."""
    said = []
    for part, names in (("base", categories.base), ("novel", categories.novel)):
        counts = _counts(test, names)
        for few, how in ((counts == 0, "no image"), ((counts > 0) & (counts < FEW), f"fewer than {FEW} images")):
            if found := [name for name, is_one in zip(names, few, strict=True) if is_one]:
                of = f"{len(found):,} of {len(names):,} {part} categories"
                said.append(f"WARNING: {of}: {how} in {test.name} to test on, such as {found[0]!r}")
    return said


def without_poor(examples: Examples, least: int, way: int) -> tuple[Examples, str | None]:
    """The categories with at least so many rows, and a line that names the others, where enough remain for a task."""
    counts = examples.index.counts[examples.labels]
    poor = [examples.index.names[label] for label in examples.labels[counts < least].tolist()]
    if not poor or len(examples.labels) - len(poor) < way:
        return examples, None
    said = (f"WARNING: {len(poor):,} of {len(examples.labels):,} novel categories are in no task, as they have fewer "
            f"than {least:,} images, such as {poor[0]!r}")  # fmt: skip
    return replace(examples, labels=examples.labels[counts >= least]), said


def is_labelled(split: Split) -> bool:
    return bool(split.class_index.counts.sum())


def _counts(split: Split, names: Sequence[str]) -> NDArray[np.int64]:
    return split.class_index.counts[split.class_index.positions(names)]
