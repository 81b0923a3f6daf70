"""900 random rows of 200,000 x 2048 fp16: actstore, a numpy memmap of the same bytes, zarr-python's oindex."""

from __future__ import annotations

import shutil

import numpy as np
import zarr

import actstore as library
from actstore.compute.measure import alternate
from tests.bench.common import OUT, actstore, features, rate, report

ROWS, BATCH = 200_000, 900


def main() -> None:
    values, labels = features(ROWS)
    store = OUT / "take.zarr"
    shutil.rmtree(store, ignore_errors=True)
    actstore("import", values, store, "--labels", labels)
    train = library.open(store)["train"]
    memmap = np.load(values, mmap_mode="r")
    array = zarr.open_array(store / "train" / "activations", mode="r")
    random = np.random.default_rng(0)

    def draw() -> np.ndarray:
        return random.integers(0, ROWS, BATCH)

    for reader in (memmap, train):  # touch every page once: both sides warm
        for start in range(0, ROWS, 8192):
            reader[start : start + 8192][:, ::2048].sum(dtype=np.float32)
    fast = alternate({"ours": lambda: train.take(draw()), "memmap": lambda: memmap[draw()]}, rounds=400, warm_up=20)
    slow = alternate({"ours": lambda: train.take(draw()), "zarr": lambda: array.oindex[draw()]}, rounds=8)
    report(
        "take",
        [
            rate("take 900 of 200,000 x 2048", fast["ours"], "numpy memmap", fast["memmap"], BATCH, "rows/s"),
            rate("take 900 of 200,000 x 2048", slow["ours"], "zarr-python oindex", slow["zarr"], BATCH, "rows/s"),
        ],
        [">= 0.9x numpy memmap", ">= 50x zarr-python oindex on the same store"],
    )
    shutil.rmtree(store)


if __name__ == "__main__":
    main()
