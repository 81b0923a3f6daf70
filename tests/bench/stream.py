"""A phi1 step (d = 2048, 900 classes) fed by the stream against the same step on fixed tensors; memory.

The store is larger than the memory allowed: 500,000 x 2048 fp16, 2 GB.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from pathlib import Path

import torch

import actstore as library
from actstore.compute.process import Result, peak_memory
from actstore.streams.class_batches import Batch, ClassBatches
from tests.bench.common import OUT, actstore, report, run

ROWS, STEPS, TURNS = 500_000, 12, 4


def make_step() -> object:
    weight = torch.nn.Linear(2048, 2048, bias=False)
    torch.nn.init.eye_(weight.weight)
    optimiser = torch.optim.SGD(weight.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)

    def step(batch: Batch) -> None:
        parameters = torch.nn.functional.normalize(weight(batch.statistics), dim=1)
        loss = torch.nn.functional.cross_entropy(batch.queries @ parameters.T, batch.targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def measure(store: Path) -> None:
    """In a process of its own, whose peak memory is that of the training: `before` holds torch and the model."""
    split = library.open(store)["train"]
    step = make_step()
    batches = ClassBatches(split, classes=range(900), seed=0)
    fixed = batches.batch(0)
    for _ in range(2):
        step(fixed)
    before = peak_memory()
    times: dict[str, list[float]] = {"fixed": [], "streamed": []}
    stream = iter(batches)
    for _ in range(TURNS):
        for name in times:
            for _ in range(STEPS):
                begin = time.perf_counter()
                step(fixed if name == "fixed" else next(stream))
                times[name].append(time.perf_counter() - begin)
    stream.close()
    print(*(statistics.median(times[name]) for name in times), before, peak_memory())


def main() -> None:
    store = OUT / "stream.zarr"
    if not store.exists():
        actstore("synth", store, "--rows", str(ROWS))
        actstore("means", store)
    _, printed = run(sys.executable, "-m", "tests.bench.stream", store)
    fixed, streamed, before, peak = map(float, printed.split())
    report(
        "stream",
        [
            Result("step fed by the stream", streamed * 1e3, "ms", "the same step on fixed tensors", fixed * 1e3,
                   streamed / fixed),
            Result("peak memory beyond model and batch", (peak - before) / 1e6, "MB"),
            Result("peak memory in all", peak / 1e6, "MB"),
            Result("store", ROWS * 4096 / 1e6, "MB"),
        ],
        ["<= 1.05x the step on fixed tensors, streamed", "peak memory beyond the model under 1.5 GB"],
    )  # fmt: skip
    shutil.rmtree(store)


if __name__ == "__main__":
    measure(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
