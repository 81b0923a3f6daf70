"""Categories as points of a plane: by their mean activation, and by their parameters (Figure 2 of the paper)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError, InvalidInputError
from actstore.storage.atomic_file import write_atomic
from predictor.figures.class_groups import nearest_rows, shared_neighbours, similar_groups, unit_rows
from predictor.figures.tsne import STEPS, tsne

GROUPS, GROUP_SIZE = 5, 8
NEIGHBOURS = 10  # compared between the two sides
LISTED = 5  # nearest categories named for each


@dataclass(frozen=True)
class ClassMap:
    """names: all categories, the first n_base are the base. means: a place (x, y) of each.

    with_parameters: positions of the categories that have parameters; parameters: their places, turned to fit the
    means. parameters_are: what they are. groups: positions of similar categories. nearest: of every category, by the
    cosine of the means. agreement: share of the 10 nearest categories that both sides have in common, 0 to 1.
    """

    names: list[str]
    n_base: int
    means: list[list[float]]
    with_parameters: list[int]
    parameters: list[list[float]]
    parameters_are: str
    groups: list[list[int]]
    nearest: list[list[int]]
    agreement: float

    @property
    def chance(self) -> float:
        """The agreement of two unrelated orders."""
        return min(1.0, NEIGHBOURS / max(1, len(self.with_parameters) - 1))

    def save(self, path: Path) -> None:
        write_atomic(path, json.dumps(asdict(self), ensure_ascii=False).encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        try:
            return cls(**json.loads(path.read_text("utf-8")))
        except (ValueError, TypeError) as error:
            raise DamagedError(f"{path} is damaged: {error}; make it again with `ppa figures`") from error


def make_class_map(
    names: Sequence[str],
    n_base: int,
    means: NDArray[Any],
    with_parameters: Sequence[int],
    parameters: NDArray[Any],
    parameters_are: str,
    steps: int = STEPS,
) -> ClassMap:
    """means: (n, dim) of the names; parameters: (m, dim) of the categories at the positions with_parameters.

    Both sides by direction alone, as cosines compare them. Groups are chosen by the means, and then shown on both.
    """
    chosen = np.asarray(with_parameters, np.int64)
    if means.shape[0] != len(names) or parameters.shape[0] != len(chosen):
        raise InvalidInputError(
            f"a class map needs a mean for each of {len(names)} names and parameters for each of {len(chosen)}, "
            f"got {means.shape[0]} and {parameters.shape[0]}"
        )
    left = tsne(unit_rows(means), steps)
    right = turned_to(tsne(unit_rows(parameters), steps), left[chosen])
    size = min(GROUP_SIZE, max(2, len(chosen) // (2 * GROUPS)))
    groups = similar_groups(means[chosen], GROUPS, size)
    return ClassMap(
        names=list(names),
        n_base=n_base,
        means=np.round(left, 3).tolist(),
        with_parameters=chosen.tolist(),
        parameters=np.round(right, 3).tolist(),
        parameters_are=parameters_are,
        groups=[chosen[group].tolist() for group in groups],
        nearest=nearest_rows(means, LISTED).tolist(),
        agreement=shared_neighbours(means[chosen], parameters, NEIGHBOURS),
    )


def turned_to(places: NDArray[Any], model: NDArray[Any]) -> NDArray[np.float64]:
    """Places (n, 2) rotated and mirrored, nothing else, to lie as near as can be to those of the model (n, 2)."""
    centred = places - places.mean(0)
    left, _, right = np.linalg.svd(centred.T @ (model - model.mean(0)))
    turned: NDArray[np.float64] = centred @ (left @ right)
    return turned
