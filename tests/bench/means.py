"""Class means of 200,000 x 2048 fp16 against flox + dask on the same store, and one plain pass over it."""

from __future__ import annotations

import shutil

import dask.array
import numpy as np
import torch
from flox import groupby_reduce

import actstore as library
from actstore.compute.measure import alternate
from actstore.compute.tensors import borrow
from actstore.split import Split
from actstore.statistics.class_statistics import NAMES, class_statistics
from tests.bench.common import OUT, actstore, features, rate, report

ROWS = 200_000


def ours(split: Split) -> None:
    for name in NAMES:
        shutil.rmtree(split.path / name, ignore_errors=True)
    class_statistics(split)


def with_flox(split: Split) -> None:
    array = dask.array.from_zarr(str(split.path / "activations"))
    means, _ = groupby_reduce(
        array.T.astype("f4"), split.labels, func="mean", expected_groups=np.arange(len(split.classes)),
    )  # fmt: skip
    means.compute()


def plain_numpy(split: Split) -> None:
    total = np.zeros(split.dim)
    for block in split.blocks():
        total += block.sum(axis=0, dtype=np.float32)


def plain_torch(split: Split) -> None:
    total = torch.zeros(split.dim)
    for block in split.blocks():
        total += borrow(block).float().sum(dim=0)


def fastest_pass(split: Split) -> None:
    """The fastest sum over all rows we could write: pieces that fit the cache, one reused buffer."""
    total, buffer = torch.zeros(split.dim), torch.empty(1024, split.dim)
    for block in split.blocks(1024):
        part = buffer[: len(block)]
        part.copy_(borrow(block))
        total += part.sum(dim=0)


def main() -> None:
    results = []
    size = ROWS * 2048 * 2 / 1e9
    for order in ("sorted", "shuffled"):
        values, labels = features(ROWS, shuffled=order == "shuffled")
        store = OUT / "means.zarr"
        shutil.rmtree(store, ignore_errors=True)
        actstore("import", values, store, "--labels", labels)
        split = library.open(store)["train"]
        _ = split.labels
        times = alternate(
            {
                "ours": lambda split=split: ours(split),
                "numpy": lambda split=split: plain_numpy(split),
                "torch": lambda split=split: plain_torch(split),
                "fastest": lambda split=split: fastest_pass(split),
            },
            rounds=5,
        )
        slow = alternate({"ours": lambda split=split: ours(split), "flox": lambda split=split: with_flox(split)}, 2)
        name = f"count, mean, variance; {order} labels"
        results += [
            rate(name, slow["ours"], "flox + dask (mean alone)", slow["flox"], size, "GB/s"),
            rate(name, times["ours"], "plain pass, numpy sum", times["numpy"], size, "GB/s"),
            rate(name, times["ours"], "plain pass, torch sum", times["torch"], size, "GB/s"),
            rate(name, times["ours"], "fastest sum alone we could write", times["fastest"], size, "GB/s"),
        ]
        shutil.rmtree(store)
    report("means", results, [">= 4x flox + dask", ">= 0.5x one plain pass that reads and sums the rows"])


if __name__ == "__main__":
    main()
