"""Leading coordinates of unit rows, kept beside the store: what the bounded search reads instead of the rows.

The first level holds p coordinates of each row and the norm of the rest, in float16. The second holds the coordinates
that follow, the first level's norm again, and the norm that then remains. Norms are rounded up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from actstore.compute.threads import spread, worker_threads
from actstore.errors import InvalidInputError
from actstore.search.kept_files import create_tensors, find, load_tensors, publish
from actstore.search.queries import unit
from actstore.search.rotation import choose_widths, fit_directions, measure_narrowing, rotate, rotation_error
from actstore.search.table import RowTable

if TYPE_CHECKING:
    from actstore.split import Split

NAME = "bounded"
_BLOCK = 2048
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Levels:
    """widths: of the levels, none where the bound does not pay. directions (p, dim): those in use.

    first (rows, widths[0]); second (rows, widths[1] - widths[0] + 2), or empty.
    """

    widths: tuple[int, ...]
    directions: Tensor
    first: Tensor
    second: Tensor

    @property
    def nbytes(self) -> int:
        return self.directions.nbytes + self.first.nbytes + self.second.nbytes


def build_levels(table: RowTable, progress: Progress | None = None) -> Levels:
    """Fitted, decided on and filled; kept beside the store where the table is a split."""
    table.check()
    directions = fit_directions(table)
    narrowing = measure_narrowing(table, directions)
    widths = choose_widths(narrowing, len(table), table.dim)
    directions = directions[: widths[-1] - 1].contiguous() if widths else directions[:0]
    shapes = _shapes(len(table), table.dim, widths)
    if table.split is None:
        made: dict[str, Any] = {name: np.zeros(shape, kind) for name, (kind, shape) in _plain(shapes).items()}
        _fill(table, made, directions, widths, progress)
        return Levels(widths, directions, torch.from_numpy(made["first"]), torch.from_numpy(made["second"]))

    def write(path: Path) -> None:
        arrays = create_tensors(path, shapes)
        _fill(table, arrays, directions, widths, progress)
        for array in arrays.values():
            array.flush()  # type: ignore[attr-defined]

    settings = {"widths": list(widths), "left": {str(width): left for width, left in narrowing.items()}}
    publish(table.split, NAME, ".safetensors", settings, write)
    return load_levels(table.split)


def load_levels(split: Split) -> Levels:
    """Mapped from the disk; refused where they belong to other content."""
    found = find(split, NAME)
    if found is None:
        raise InvalidInputError(
            f"split {split.name!r} of {split.store_path} has no bounded index; "
            f"build it with `actstore index {split.store_path} --split {split.name} --kind {NAME}`"
        )
    path, settings = found
    tensors = load_tensors(path)
    return Levels(tuple(settings["widths"]), tensors["directions"], tensors["first"], tensors["second"])


def _shapes(rows: int, dim: int, widths: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    first = widths[0] if widths else 0
    second = widths[1] - first + 2 if len(widths) > 1 else 0
    return {
        "directions": ("F32", (max(0, max(widths, default=0) - 1), dim)),
        "first": ("F16", (rows if first else 0, first)),
        "second": ("F16", (rows if second else 0, second)),
    }


def _plain(shapes: dict[str, tuple[str, tuple[int, ...]]]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: ({"F16": "f2", "F32": "f4"}[kind], shape) for name, (kind, shape) in shapes.items()}


def _fill(
    table: RowTable, arrays: dict[str, Any], directions: Tensor, widths: tuple[int, ...], progress: Progress | None
) -> None:
    if not widths:
        return
    arrays["directions"][...] = directions.numpy()
    outs = [torch.from_numpy(arrays[name]) for name in ("first", "second")[: len(widths)]]
    step = table.block_rows or _BLOCK

    def fill(part: int, worker: int) -> None:
        block = table.read(part * step, min(len(table), (part + 1) * step))
        for start in range(0, len(block), _BLOCK):
            rows = slice(part * step + start, part * step + min(len(block), start + _BLOCK))
            for out, values in zip(outs, _coordinates(block[start : start + _BLOCK], directions, widths), strict=True):
                out[rows] = values
        if progress is not None:
            progress(len(block))

    with worker_threads() as workers:
        spread(fill, -(-len(table) // step), workers)


def _coordinates(rows: Tensor, directions: Tensor, widths: tuple[int, ...]) -> list[Tensor]:
    """Of (n, dim) rows: the float16 values of each level."""
    along = rotate(unit(rows), directions)  # (n, p)
    p = widths[0] - 1
    rests = [_rest(along[:, : width - 1], rows.shape[1]) for width in widths]
    levels = [torch.cat([along[:, :p].half(), rests[0]], 1)]
    if len(widths) > 1:
        levels.append(torch.cat([along[:, p:].half(), rests[0], rests[1]], 1))
    return levels


def _rest(along: Tensor, dim: int) -> Tensor:
    """(n, p) coordinates of unit rows -> (n, 1) norms of what is left, rounded up to float16."""
    square = (1 - along.double().square().sum(1, keepdim=True)).clamp(min=0)
    rest = (square + rest_slack(along.shape[1], dim)).sqrt()
    return (rest * (1 + 2.0**-10)).half()


def rest_slack(p: int, dim: int) -> float:
    """How much larger the square of the rest may be than one minus the square of the coordinates computed."""
    return 3 * rotation_error(p, dim) + 2.0**-20
