"""Rows of the classes of a split, and what a method may know of the base categories (C_large): their means, and where a
store is at hand, their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from actstore.compute.tensors import borrow, one_thread
from actstore.errors import InvalidInputError
from actstore.search.by_class import ClassRows, unit
from actstore.split import Split
from actstore.streams.sampling import Stream, generator

SIGN_ROWS = 1000
Rows = NDArray[np.int64]  # row numbers of a split


def rows_of(split: Split, names: Sequence[str], most: int | None = None) -> tuple[Rows, Rows]:
    """Rows of these classes, and for each the position of its class among them; at most `most`, ascending."""
    index = split.class_index
    return join_groups([index.rows(index.position(name)) for name in names], most)


def join_groups(groups: Sequence[Rows], most: int | None = None) -> tuple[Rows, Rows]:
    """Rows of all groups, and for each the number of its group. Of more than `most` a random sample in their order: the
    first ones would be of the first groups alone."""
    rows = np.concatenate([*groups, np.empty(0, np.int64)])
    targets = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    if most is None or len(rows) <= most:
        return rows, targets
    kept = np.sort(generator(0, 0).choice(len(rows), most, replace=False))
    return rows[kept], targets[kept]


def take_float(split: Split, rows: NDArray[Any]) -> Tensor:
    """(n, dim) float32."""
    return split.to_torch(rows, dtype=torch.float32)


def is_signed(split: Split, names: Sequence[str]) -> bool:
    """Whether activations of these classes may be negative, as transformers' are: nearly every row is, so some tell."""
    return bool((take_float(split, rows_of(split, names, SIGN_ROWS)[0]) < 0).any())


def class_means(split: Split, names: Sequence[str]) -> Tensor:
    """(n, dim) mean activations of these classes; computed first where the store has none yet."""
    index = split.class_index
    labels = [index.position(name) for name in names]
    if (index.counts[labels] == 0).any():
        empty = names[int(np.flatnonzero(index.counts[labels] == 0)[0])]
        raise InvalidInputError(f"class {empty!r} has no rows in {split.path}, so it has no mean; leave it out")
    return torch.from_numpy(split.means()[labels])


Made = TypeVar("Made")


class BaseCategories:
    """What a method may know of the base categories: their means, and where a store is at hand, their rows.

    It is made of tensors, or of the rows of a store by `of_split`, for methods that need more than means.

    Args:
        names: names of the categories, in the order of their scores.
        means: (n_base, dim) the mean activation of each.

    Raises:
        InvalidInputError: there are not as many means as names.

    Examples:
        >>> predictor.BaseCategories(["ant", "bee"], np.eye(2, 8)).dim
        8
    """

    def __init__(self, names: Sequence[str], means: Tensor | ArrayLike | None = None) -> None:
        self.names = tuple(names)
        if means is not None:
            self.means = torch.as_tensor(means, dtype=torch.float32)
            if self.means.ndim != 2 or len(self.means) != len(self.names):
                raise InvalidInputError(
                    f"{len(self.names)} base categories need means of shape ({len(self.names)}, dim), "
                    f"got {tuple(self.means.shape)}"
                )
        self.split: Split | None = None
        self._left_out: Rows = np.empty(0, np.int64)
        self._kept: dict[Any, Any] = {}

    @classmethod
    def of_split(cls, split: Split, names: Sequence[str], left_out: Rows | None = None) -> Self:
        """Make them of the rows of a split.

        Args:
            split: where the rows lie.
            names: names of the categories, in the order of their scores.
            left_out: row numbers that are not known, because queries are made of them.
        """
        base = cls(names)
        base.split = split
        base._left_out = np.empty(0, np.int64) if left_out is None else np.sort(left_out)
        return base

    @cached_property
    def means(self) -> Tensor:
        """(n_base, dim) the mean activation of each category, in float32."""
        split, left_out = self.rows_of_split, self._left_out
        means = class_means(split, self.names)
        if len(left_out):
            index = split.class_index
            place = {label: place for place, label in enumerate(index.positions(self.names).tolist())}
            counts = torch.from_numpy(index.counts[list(place)]).double()
            sums = means.double() * counts[:, None]
            places = torch.tensor([place[label] for label in split.labels[left_out].tolist()])
            sums.index_add_(0, places, -take_float(split, left_out).double())
            rest = counts - torch.bincount(places, minlength=len(self.names))
            means = (sums / rest[:, None]).float()
        return means

    @property
    def dim(self) -> int:
        """The number of values in an activation."""
        return self.means.shape[1] if self.split is None else self.split.dim

    @property
    def is_as_stored(self) -> bool:
        """Whether rows are known as they lie in the store, so that an index of them may be searched."""
        return not len(self._left_out)

    @property
    def rows_of_split(self) -> Split:
        """The split that rows come from; an error where only means are at hand."""
        if self.split is None:
            raise InvalidInputError("this method needs rows of the base categories; evaluate it on a store")
        return self.split

    @cached_property
    def mean_directions(self) -> Tensor:
        """(n_base, dim) the mean of each category's activations after each was scaled to length 1.

        Without rows it is the mean activation, scaled.
        """
        if self.split is None:
            return unit(self.means)
        chosen, directions = self.draw(), torch.empty(len(self.names), self.dim)
        with one_thread():
            for place in range(len(self.names)):
                rows = chosen.rows[chosen.offsets[place] : chosen.offsets[place + 1]]
                directions[place] = unit(borrow(self.split.take(rows)).float()).mean(0)
        return directions

    def once(self, key: Any, make: Callable[[], Made]) -> Made:
        """Make what is costly once for these categories, and share it between methods.

        Args:
            key: names what is made.
            make: makes it when it is asked for the first time.
        """
        if key not in self._kept:
            self._kept[key] = make()
        made: Made = self._kept[key]
        return made

    def draw(self, share: float = 1.0, seed: int = 0) -> ClassRows:
        """Draw a share of the rows of each category, and at least one row.

        Args:
            share: above 0 and at most 1. Of one seed, a smaller share is part of a larger one.
            seed: of the draw.

        Returns:
            Row numbers by category, ascending.
        """
        if not 0 < share <= 1:
            raise InvalidInputError(f"share must be above 0 and at most 1, got {share}")
        index, groups = self.rows_of_split.class_index, []
        for label in index.positions(self.names).tolist():
            rows = index.rows(label)
            rows = rows[~np.isin(rows, self._left_out)] if len(self._left_out) else rows
            if share < 1:
                order = generator(seed, label, Stream.NEIGHBOUR_SHARES).permutation(len(rows))
                rows = rows[np.sort(order[: min(len(rows), max(1, round(share * len(rows))))])]
            groups.append(rows)
        return ClassRows.joined(groups, self.names)

    def take(self, rows: Rows | ClassRows) -> Tensor:
        """Read rows of the split.

        Args:
            rows: row numbers (n,), or what `draw` returns.

        Returns:
            (n, dim) in float32.

        Examples:
            >>> base = predictor.BaseCategories.of_split(store["train"], store.classes)
            >>> half = base.draw(0.5)
            >>> base.take(half).shape == (len(half.rows), store.dim)
            True
        """
        return take_float(self.rows_of_split, rows.rows if isinstance(rows, ClassRows) else rows)
