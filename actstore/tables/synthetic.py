"""Generated rows that resemble real ResNet-50 activations: class structure, sparsity, spectrum.

A row is a gain times relu(h + threshold)^2 per feature. h is Gaussian: a part shared by the class, a
part of the row, both with a power-law spectrum, and a little independent noise. The constants were
fitted to the statistics of 2,000 activations of a ResNet-50; docs/synthetic.md compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from actstore.progress import SplitProgress
from actstore.spec import Json
from actstore.storage.place import AnyPlace
from actstore.store import ActivationStore
from actstore.streams.sampling import Stream, generator
from actstore.tables.filling import fill_split, open_or_create
from actstore.tables.row_source import RowSource, Table

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


def synthesize(
    store: AnyPlace, rows: int = 100_000, dim: int = 2048, classes: int = 1000, *, seed: int = 0,
    shuffled: bool = False, split: str = "train", restart: bool = False, progress: SplitProgress | None = None,
    **layout: Any,
) -> ActivationStore:  # fmt: skip
    """Generate a store of rows that resemble the activations of a ResNet-50, block by block.

    An interrupted call goes on when it is repeated.

    Args:
        store: where the store goes.
        rows: how many rows.
        dim: number of values in a row.
        classes: how many classes.
        seed: of the random numbers.
        shuffled: put the labels into random order instead of class after class.
        split: name of the split.
        restart: drop the rows of an interrupted call.
        progress: is called with the split, how many of its rows are done and how many it has.
        **layout: `dtype`, `chunk_rows` and `codec`; see `create`.

    Returns:
        The store.

    Examples:
        >>> made = actstore.synthesize("generated.zarr", rows=100, dim=32, classes=5)
        >>> made["train"].shape
        (100, 32)
    """
    spec = SyntheticSpec(rows, dim, classes, seed, shuffled)
    table, provenance = spec.table(), {"source": f"synthetic, seed {seed}"}
    target = open_or_create(store, {split: table}, spec.class_names(), provenance=provenance, **layout)
    fill_split(target, split, table, spec.source(), progress, restart)
    return target


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
