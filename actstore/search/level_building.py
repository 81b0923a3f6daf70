"""Making, extending and opening the levels of a bounded index."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from actstore.compute.threads import spread, worker_threads
from actstore.errors import DamagedError, InvalidInputError
from actstore.search.kept_files import TYPES, Kept, building, create_tensors, find_loaded, load_tensors, publish
from actstore.search.levels import Levels, encode_levels, level_shapes
from actstore.search.plan import choose_widths, measure_costs, measure_narrowing
from actstore.search.rotation import SAMPLE, principal, sample_rows, skewness, turned
from actstore.search.table import RowTable

if TYPE_CHECKING:
    from actstore.split import Split

NAME = "bounded"
_BLOCK = 2048
Progress = Callable[[int], None]


def build_levels(table: RowTable, progress: Progress | None = None, again: bool = False) -> Levels:
    """Fitted, decided on and filled; kept beside the store where the table is a split. An index of the split's first
    rows is extended, unless it is to be made `again`. Of two processes that do this at once, one is refused."""
    table.check()
    if table.split is None:
        return _build_levels(table, progress, again)
    with building(table.split, NAME):
        return _build_levels(table, progress, again)


def _build_levels(table: RowTable, progress: Progress | None, again: bool) -> Levels:
    if table.split is not None and not again:
        found = _usable(table.split)
        if found is not None and 0 < found[0].rows < len(table) and found[0].settings["widths"]:
            if progress is not None:
                progress(found[0].rows)  # with the same directions and widths; these rows are copied
            return _write(table, _levels(*found), found[0].settings, progress)
    directions = principal(sample_rows(table, SAMPLE))
    narrowing = measure_narrowing(table, directions)
    widths = choose_widths(narrowing, len(table), table.dim, measure_costs(table))
    settings = {"widths": list(widths), "left": {str(width): left for width, left in narrowing.items()}}
    basis = turned(directions, widths) if widths else torch.empty(0, table.dim)
    empty = torch.empty(0)
    made = Levels(widths, skewness(basis) if widths else 0.0, basis, empty, empty, empty)
    return _write(table, made, {**settings, "skew": made.skew}, progress)


def _usable(split: Split) -> tuple[Kept, dict[str, Tensor]] | None:
    try:
        return find_loaded(split, NAME, load_tensors)
    except (InvalidInputError, DamagedError):  # of other rows, of another version, or damaged: made anew
        return None


def _write(table: RowTable, before: Levels, settings: dict[str, Any], progress: Progress | None) -> Levels:
    """Levels of all rows with the directions given, and with what is there already of their first rows."""
    shapes = level_shapes(len(table), table.dim, before.widths)
    if table.split is None:
        made: dict[str, Any] = {name: np.zeros(shape, TYPES[kind]) for name, (kind, shape) in shapes.items()}
        _fill(table, made, before, progress)
        return Levels(before.widths, before.skew, **{name: torch.from_numpy(array) for name, array in made.items()})

    def write(path: Path) -> None:
        arrays = create_tensors(path, shapes)
        _fill(table, arrays, before, progress)
        for array in arrays.values():
            array.flush()  # type: ignore[attr-defined]

    publish(table.split, NAME, ".safetensors", settings, write)
    return load_levels(table.split)


def load_levels(split: Split) -> Levels:
    """Mapped from the disk; refused where they belong to other content. They may cover the first rows only."""
    found = find_loaded(split, NAME, load_tensors)
    if found is None:
        raise InvalidInputError(
            f"split {split.name!r} of {split.store_path} has no bounded index; "
            f"build it with `actstore index {split.store_path} --split {split.name} --kind {NAME}`"
        )
    return _levels(*found)


def _levels(kept: Kept, tensors: dict[str, Tensor]) -> Levels:
    return Levels(tuple(kept.settings["widths"]), kept.settings["skew"], **tensors)


def _fill(table: RowTable, arrays: dict[str, Any], before: Levels, progress: Progress | None) -> None:
    widths = before.widths
    if not widths:
        return
    arrays["directions"][...] = before.directions.numpy()
    outs = {name: torch.from_numpy(arrays[name]) for name in ("factors", "first", "second")}
    first = len(before.first)
    for name, out in outs.items():
        if first:
            out[:first] = getattr(before, name)
    step = table.block_rows or _BLOCK

    def fill(part: int, worker: int) -> None:
        done = first + part * step
        block = table.read(done, min(len(table), done + step))
        for start in range(0, len(block), _BLOCK):
            piece = block[start : start + _BLOCK]
            for name, values in encode_levels(piece, before).items():
                outs[name][done + start : done + start + len(piece)] = values
        if progress is not None:
            progress(len(block))

    with worker_threads() as workers:
        spread(fill, -(-(len(table) - first) // step), workers)
