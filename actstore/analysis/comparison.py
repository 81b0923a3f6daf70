"""How alike several representations of the same images are: stores, splits or layers, compared pair by pair.

CKA and Procrustes are of all rows that are aligned. RSA and mutual nearest neighbours look at all pairs of rows, so
they are of a sample of rows, drawn by a seed. All of it takes one pass over the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.analysis.alignment import Alignment, align, aligned_blocks, open_representation
from actstore.analysis.similarity import (
    LEAST_ROWS,
    MEASURES,
    Covariances,
    Floats,
    Measurer,
    Settings,
)
from actstore.compute.tensors import borrow
from actstore.errors import InvalidInputError
from actstore.progress import Progress
from actstore.reading.mapped_rows import memory
from actstore.split import Split
from actstore.storage.place import AnyPlace
from actstore.streams.sampling import Stream, generator

if TYPE_CHECKING:
    import pandas

_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class Similarity:
    """Of two representations by one measure, with the ends of its 95% interval; NaN where it is not defined."""

    one: str
    other: str
    measure: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """What `compare` found; it prints as a table.

    Attributes:
        names: what the representations are called.
        rows: how many rows were compared.
        sampled: how many of them RSA and k-NN used.
        similarities: a value for each pair and measure, with its interval.
        notes: what was left out, in sentences.
        settings: how it was measured.
    """

    names: tuple[str, ...]
    rows: int
    sampled: int
    similarities: tuple[Similarity, ...]
    notes: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)

    def matrix(self, measure: str) -> Floats:
        """(representations, representations) similarity by a measure; 1 of each with itself."""
        if measure not in self.settings.measures:
            raise InvalidInputError(f"measure must be one of {', '.join(self.settings.measures)}, got {measure!r}")
        values = np.eye(len(self.names))
        for found in self.similarities:
            if found.measure == measure:
                i, j = self.names.index(found.one), self.names.index(found.other)
                values[i, j] = values[j, i] = found.value
        return values

    def records(self) -> list[dict[str, Any]]:
        """A row for each pair and measure; None where a measure is not defined."""
        return [
            {key: None if isinstance(value, float) and np.isnan(value) else value for key, value in vars(found).items()}
            for found in self.similarities
        ]

    def to_pandas(self) -> pandas.DataFrame:
        import pandas

        return pandas.DataFrame(self.records(), columns=["one", "other", "measure", "value", "low", "high"])

    def __str__(self) -> str:
        width = max(map(len, self.names))
        lines = [
            f"{self.rows:,} rows; RSA and k-NN of {self.sampled:,} of them" if self.sampled else f"{self.rows:,} rows"
        ]
        for found in self.similarities:
            interval = "" if np.isnan(found.low) else f"  [{found.low:.4f}, {found.high:.4f}]"
            pair = f"{found.one:{width}}  {found.other:{width}}"
            lines.append(f"{pair}  {found.measure:12}  {found.value:7.4f}{interval}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    __repr__ = __str__


def compare(
    *representations: Split | AnyPlace,
    measures: Sequence[str] = MEASURES,
    sample: int = 2000,
    k: int = 10,
    distance: str = "correlation",
    resamples: int = 200,
    seed: int = 0,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Measure how alike several representations of the same images are, pair by pair, with rows aligned by id.

    Intervals are those of a bootstrap over rows. RSA and mutual nearest neighbours look at pairs of rows, so they are
    computed on a sample of rows; CKA and Procrustes use all of them.

    Args:
        *representations: splits, or paths such as "a.zarr/train"; a store's path stands for its only split, or for
            train.
        measures: some of cka, procrustes, rsa-spearman, rsa-pearson and knn.
        sample: how many rows RSA and k-NN look at.
        k: neighbours of each row for k-NN.
        distance: between rows for RSA: "correlation", "cosine" or "euclidean".
        resamples: of the bootstrap, 0 for no intervals.
        seed: of the sample and the bootstrap.
        names: what the representations are called, by default STORE/SPLIT.
        progress: is called with the number of rows that were read.

    Returns:
        A value with its 95% interval for every pair and measure; it prints as a table and has `matrix` and
        `to_pandas`.

    Raises:
        InvalidInputError: rows cannot be aligned, because ids are missing or none is common to all.

    Examples:
        >>> found = actstore.compare(train, other["train"], measures=["cka"], resamples=0)
        >>> found.matrix("cka").shape
        (2, 2)
    """
    chosen = Settings(tuple(measures), sample, k, distance, resamples, seed)
    splits = [open_representation(each) for each in representations]
    called = tuple(names) if names is not None else tuple(f"{split.store_path.name}/{split.name}" for split in splits)
    if len(splits) < 2:
        raise InvalidInputError(f"compare needs two representations or more, got {len(splits)}")
    if len(called) != len(splits) or len(set(called)) != len(called):
        raise InvalidInputError(
            f"every representation needs a name of its own, got {', '.join(called)}; give others with names=(…)"
        )
    alignment = align(splits, called)
    if len(alignment) < LEAST_ROWS:
        raise InvalidInputError(
            f"only {len(alignment)} rows are in all of the splits; a comparison needs at least {LEAST_ROWS}"
        )
    _require_memory(splits, chosen)
    sampled = np.arange(len(alignment))
    if len(sampled) > sample:
        sampled = np.sort(generator(seed, 0, Stream.COMPARED_ROWS).choice(len(sampled), sample, replace=False))
    covariances, rows = _read_once(splits, alignment, sampled, chosen, progress)
    measured = Measurer(covariances, rows, len(alignment), chosen)
    similarities = [
        Similarity(called[i], called[j], measure, *measured.measure(measure, i, j))
        for i, j in combinations(range(len(splits)), 2)
        for measure in chosen.measures
    ]
    pairwise = any(not measure.startswith(("cka", "procrustes")) for measure in chosen.measures)
    notes = (*alignment.notes, *_notes(splits, called, similarities, len(alignment), measured.left_out * pairwise))
    return Comparison(called, len(alignment), len(sampled) * pairwise, tuple(similarities), notes, chosen)


def _require_memory(splits: Sequence[Split], settings: Settings) -> None:
    features = sum(split.dim for split in splits)
    needed = 8 * features * features
    if settings.needs_covariances and needed > memory() // 2:
        raise InvalidInputError(
            f"the covariances of {features:,} features need {needed >> 30:,} GB of memory; compare fewer at a time, or "
            "by the measures rsa-spearman, rsa-pearson and knn alone"
        )


def _read_once(
    splits: Sequence[Split],
    alignment: Alignment,
    sample: NDArray[np.int64],
    settings: Settings,
    progress: Progress | None,
) -> tuple[Covariances | None, list[torch.Tensor]]:
    """The covariances of all rows, and the sampled rows (n, dim) of each split in float32."""
    covariances: Covariances | None = None
    sampled = [torch.empty((len(sample), split.dim)) for split in splits]
    start = 0
    for blocks in aligned_blocks(splits, alignment, _BLOCK_ROWS):
        tensors = [borrow(block).float() for block in blocks]
        count = len(tensors[0])
        if settings.needs_covariances:
            covariances = covariances or Covariances(tensors)
            covariances.add(tensors)
        first, last = np.searchsorted(sample, [start, start + count]).tolist()
        for kept, block in zip(sampled, tensors, strict=True):
            kept[first:last] = block[torch.from_numpy(sample[first:last] - start)]
        start += count
        if progress is not None:
            progress(count)
    return covariances, sampled


def _notes(
    splits: Sequence[Split], names: Sequence[str], similarities: Sequence[Similarity], rows: int, left_out: int
) -> list[str]:
    notes = []
    widest = max(range(len(splits)), key=lambda number: splits[number].dim)
    linear = any(found.measure in ("cka", "procrustes") for found in similarities)
    if linear and rows < splits[widest].dim:
        notes.append(
            f"{rows:,} rows are fewer than the {splits[widest].dim:,} features of {names[widest]}: CKA and Procrustes "
            "are larger than they would be with more rows"
        )
    if left_out:
        notes.append(f"sampled rows with one value in all features, left out of RSA and k-NN: {left_out:,}")
    undefined = sorted({found.measure for found in similarities if np.isnan(found.value)})
    if undefined:
        notes.append(
            f"not defined where all rows, or all distances, of a representation are equal: {', '.join(undefined)}"
        )
    return notes
