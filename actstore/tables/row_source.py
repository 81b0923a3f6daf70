"""Rows on their way into a store: what every source of them offers, the kinds that most are, rows of a split and
generated ones among them, and what rows lose in a store of a narrower type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.compute.tensors import borrow, convert_into
from actstore.errors import InvalidInputError
from actstore.layout.columns import Column
from actstore.spec import Dtype, Json
from actstore.split import Split
from actstore.streams.sampling import Stream, generator

if TYPE_CHECKING:
    import pyarrow


BLOCK_BYTES = 8 << 20  # read at a time: fits the cache, so that conversion does not wait for memory
Read = Callable[[slice], NDArray[Any]]


@dataclass(frozen=True)
class RowSource:
    """(rows, dim) values that are read in order, from any row on, without ever being whole in memory.

    blocks: (start, stop) -> consecutive (n, dim) blocks; a block may be overwritten when the next one is drawn.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    blocks: Callable[[int, int], Iterator[NDArray[Any]]]


@dataclass(frozen=True)
class Table:
    """A source with what belongs to its rows: labels (n,) as numbers or names, ids (n,), columns (n,) by name."""

    activations: RowSource
    labels: NDArray[Any] | None = None
    ids: Sequence[str] | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)


@dataclass(frozen=True)
class ArrayFile:
    """shapes: of every array in the file, by name. rows: opens a large one. values: loads a small one."""

    shapes: Mapping[str, tuple[int, ...]]
    rows: Callable[[str], RowSource]
    values: Callable[[str], NDArray[Any]]
    columns: Mapping[str, Callable[[], Column]] = field(default_factory=dict)  # what is plainly a column, unasked for


def sliced_rows(
    shape: tuple[int, ...], dtype: np.dtype[Any], opened: Callable[[], AbstractContextManager[Read]]
) -> RowSource:
    """Rows of what gives any slice of them; `opened` opens it before the first and closes it after the last."""

    def blocks(start: int, stop: int) -> Iterator[NDArray[Any]]:
        step = block_rows(shape[1], dtype)
        with opened() as read:
            for position in range(start, stop, step):
                yield read(slice(position, min(position + step, stop)))

    return RowSource((shape[0], shape[1]), dtype, blocks)


def array_rows(values: NDArray[Any]) -> RowSource:
    """An array or memory map."""
    return sliced_rows(values.shape, values.dtype, lambda: nullcontext(values.__getitem__))


def batched_rows(
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    batches: Callable[[int], Iterable[pyarrow.RecordBatch]],
    values: Callable[[pyarrow.RecordBatch], NDArray[Any]],
) -> RowSource:
    """Rows of a table of arrow that is read from its beginning. batches: by how many rows to read at a time."""

    def blocks(start: int, stop: int) -> Iterator[NDArray[Any]]:
        position = 0
        for batch in batches(block_rows(shape[1], dtype)):
            first, last = max(start - position, 0), min(stop - position, len(batch))
            if first < last:
                yield values(batch.slice(first, last - first))
            position += len(batch)
            if position >= stop:
                return

    return RowSource(shape, dtype, blocks)


def split_table(split: Split, rows: NDArray[np.int64] | None = None) -> Table:
    """Rows of a split with their labels, as numbers of its class list, columns, and ids where it has any."""
    ids: Sequence[str] | None = split.ids if split.committed.has_ids else None
    columns = {name: split.columns.stored(name) for name in split.columns}

    def blocks(start: int, stop: int) -> Iterator[NDArray[Any]]:
        step = block_rows(split.dim, split.dtype)
        for position in range(start, stop, step):
            end = min(position + step, stop)
            if rows is not None:
                yield split.rows.take(rows[position:end])
            else:
                yield split.rows.read(position, end)
                split.rows.release(position, end)

    source = RowSource((len(split) if rows is None else len(rows), split.dim), split.dtype, blocks)
    if rows is None:
        return Table(source, split.labels, ids, columns)
    ids = None if ids is None else [ids[row] for row in rows.tolist()]
    return Table(source, split.labels[rows], ids, {name: column.take(rows) for name, column in columns.items()})


def block_rows(dim: int, dtype: np.dtype[Any]) -> int:
    return max(1, BLOCK_BYTES // (dim * dtype.itemsize))


def natural_dtype(tables: Mapping[str, Table]) -> Dtype:
    """The type that keeps rows as they came: f2 for fp16 and 8-bit integers, f4 for everything else.

    float64 and long integers have no type of their own in a store: f4, and `Rounding` says what that cost.
    """
    return "f2" if all(is_exact(table.activations.dtype, "f2") for table in tables.values()) else "f4"


def is_exact(dtype: np.dtype[Any], stored: str) -> bool:
    """Whether every value of a type is one of the stored type."""
    return bool(np.can_cast(dtype.newbyteorder("="), stored, "safe"))


_PIECE_ROWS = 512


class Rounding:
    """The largest rounding error of a value, relative to the largest value of its row; None: nothing was rounded."""

    def __init__(self) -> None:
        self.largest: float | None = None

    def watch(self, table: Table, stored: str) -> Table:
        """The same table; what is read of it is measured where the stored type may change it.

        Types that are no real numbers pass as they are: the writer refuses them with a reason of its own.
        """
        rows = table.activations
        if is_exact(rows.dtype, stored) or rows.dtype.kind not in "fiub":
            return table

        def blocks(start: int, stop: int) -> Iterator[NDArray[Any]]:
            for block in rows.blocks(start, stop):
                self.measure(block, stored)
                yield block

        return replace(table, activations=replace(rows, blocks=blocks))

    def measure(self, values: NDArray[Any], stored: str) -> None:
        """values (n, dim)"""
        for start in range(0, len(values), _PIECE_ROWS):
            piece = values[start : start + _PIECE_ROWS]
            kept = np.empty(piece.shape, stored)
            convert_into(kept, piece)
            # a difference of two close numbers of one type is exact, so fp32 is wide enough for fp32
            before = borrow(np.ascontiguousarray(piece, np.float32 if piece.dtype == np.float32 else np.float64))
            error = (torch.from_numpy(kept).to(before.dtype) - before).abs_().amax(dim=1) / before.abs().amax(dim=1)
            # NaN is a row of zeros, or one that is not finite: the writer refuses that with a reason of its own
            self.largest = max(self.largest or 0.0, float(error.nan_to_num(0.0, 0.0).max()))


# Generated rows that resemble real ResNet-50 activations: class structure, sparsity, spectrum. A row is a gain times
# relu(h + threshold)^2 per feature. h is Gaussian: a part shared by the class, a part of the row, both with a power-law
# spectrum, and a little independent noise. The constants were fitted to the statistics of 2,000 activations of a
# ResNet-50; docs/synthetic.md compares them.
TILE = 2048  # rows drawn from one random stream; never depends on how rows are asked for
_LATENT = 512
_ROW_SPECTRUM, _CLASS_SPECTRUM = 1.137, 1.164  # eigenvalue k falls as k to the minus this
_CLASS_SHARE, _NOISE_SHARE = 0.2015, 0.0696  # of the variance of h; of the rest
_THRESHOLD, _THRESHOLD_SPREAD = 0.65, 0.2235
_GAIN_SPREAD, _ROW_SPREAD = 0.453, 0.0497  # log-normal, over features and over rows
_MEAN_NORM = 50.3


@dataclass(frozen=True)
class SyntheticSpec:
    rows: int
    dim: int = 2048
    classes: int = 1000
    seed: int = 0
    shuffled: bool = False  # labels in random order instead of class after class

    def __post_init__(self) -> None:
        for name, value in (("rows", self.rows), ("dim", self.dim), ("classes", self.classes)):
            if value < 1:
                raise InvalidInputError(f"{name} must be positive, got {value}")

    def source(self) -> dict[str, Json]:
        facts = asdict(self)
        return {"kind": "synthetic", "count": facts.pop("rows"), **facts}

    def labels(self) -> NDArray[np.int64]:
        ordered = np.arange(self.rows, dtype=np.int64) * self.classes // self.rows
        return generator(self.seed, 0, Stream.SYNTHETIC_ORDER).permutation(ordered) if self.shuffled else ordered

    def class_names(self) -> list[str]:
        width = len(str(self.classes - 1))
        return [f"class{label:0{width}d}" for label in range(self.classes)]

    def table(self) -> Table:
        labels = self.labels()
        rows = RowSource((self.rows, self.dim), np.dtype(np.float32), _Rows(self, labels).blocks)
        return Table(rows, labels)


class _Rows:
    """Row i is the same whichever rows are asked for with it (on one machine and number of threads)."""

    def __init__(self, spec: SyntheticSpec, labels: NDArray[np.int64]) -> None:
        self._seed, self._labels, self._dim = spec.seed, labels, spec.dim
        random = _torch_generator(spec.seed, 0, Stream.SYNTHETIC_FEATURES)
        self._row_mix = _mixing(_ROW_SPECTRUM, spec.dim, random)  # (latent, dim)
        self._class_mix = _mixing(_CLASS_SPECTRUM, spec.dim, random)
        self._threshold = _THRESHOLD + _THRESHOLD_SPREAD * torch.randn(spec.dim, generator=random)
        gain = torch.exp(_GAIN_SPREAD * torch.randn(spec.dim, generator=random))
        self._gain = gain * _MEAN_NORM / _expected_norm(gain, self._threshold)

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        for tile in range(start // TILE, -(-stop // TILE)):
            first, last = max(start, tile * TILE), min(stop, (tile + 1) * TILE)
            yield self._tile(tile)[first - tile * TILE : last - tile * TILE].numpy()

    def _tile(self, tile: int) -> torch.Tensor:
        """(TILE, dim); rows past the end are drawn too, so that a longer set begins with a shorter one's noise."""
        random = _torch_generator(self._seed, tile, Stream.SYNTHETIC_ROWS)
        labels = self._labels[tile * TILE : (tile + 1) * TILE]
        hidden = torch.randn(TILE, _LATENT, generator=random) @ self._row_mix
        hidden *= ((1 - _CLASS_SHARE) * (1 - _NOISE_SHARE)) ** 0.5
        noise = torch.randn(TILE, self._dim, generator=random)
        hidden.add_(noise, alpha=((1 - _CLASS_SHARE) * _NOISE_SHARE) ** 0.5)
        amplitude = torch.exp(_ROW_SPREAD * torch.randn(TILE, 1, generator=random))
        hidden = hidden[: len(labels)]
        present, position = np.unique(labels, return_inverse=True)
        centres = torch.stack([self._class_code(int(label)) for label in present]) @ self._class_mix
        hidden.add_(centres[torch.from_numpy(position)], alpha=_CLASS_SHARE**0.5)
        hidden.add_(self._threshold).relu_().square_().mul_(self._gain).mul_(amplitude[: len(labels)])
        return hidden

    def _class_code(self, label: int) -> torch.Tensor:
        return torch.randn(_LATENT, generator=_torch_generator(self._seed, label, Stream.SYNTHETIC_CLASSES))


def _mixing(decay: float, dim: int, random: torch.Generator) -> torch.Tensor:
    """(latent, dim) whose columns have unit length: every feature of h has unit variance."""
    scale = torch.arange(1, _LATENT + 1).pow(-decay / 2)
    mix = torch.randn(_LATENT, dim, generator=random) * scale[:, None]
    unit: torch.Tensor = mix / mix.norm(dim=0)
    return unit


def _expected_norm(gain: torch.Tensor, threshold: torch.Tensor) -> float:
    """sqrt(E |x|^2) with h standard normal, by quadrature."""
    grid = torch.linspace(-6, 6, 601, dtype=torch.float64)
    weight = torch.exp(-(grid**2) / 2)
    fourth = torch.relu(grid[:, None] + threshold.double()).pow(4)  # (grid, dim)
    moment = (weight[:, None] * fourth).sum(0) / weight.sum()
    return float((gain.double() ** 2 * moment).sum().sqrt())


def _torch_generator(seed: int, number: int, stream: int) -> torch.Generator:
    drawn = generator(seed, number, stream).integers(0, 2**63)
    return torch.Generator().manual_seed(int(drawn))
