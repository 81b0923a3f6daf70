"""A step of phi2 over many categories (d = 2048): one process and two, one thread each, the loss at once and in blocks.

`python -m tests.bench.phi_ranks 21000` for as many categories; 5,000 by default.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import torch

import actstore as library
import predictor.training.phi
from actstore.compute.process import Result, peak_memory
from actstore.compute.tensors import reuse_freed_memory
from predictor.protocol.category_split import CategorySplit
from predictor.training.phi import PhiTraining, TrainConfig
from predictor.training.processes import joined_processes
from tests.bench.common import OUT, actstore, report, run

DIM, ROUNDS = 2048, 2
WHOLE, BLOCKS = "at once", "in blocks"


def measure_steps(store: Path, steps: int, block_bytes: int) -> None:
    """In a process of its own, or several that torchrun started: prints a line of figures for each."""
    reuse_freed_memory()
    torch.set_num_threads(1)
    predictor.training.phi.LOGIT_BYTES = block_bytes
    split = library.open(store)["train"]
    with joined_processes(torch.device("cpu")) as (processes, device):
        training = PhiTraining(split, None, CategorySplit(split.classes), TrainConfig(), device, processes=processes)
        loss = training.step(0)["loss"]
        loading = peak_memory()
        Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
        times = []
        for number in range(1, steps + 1):
            processes.wait()
            begin = time.perf_counter()
            training.step(number)
            times.append(time.perf_counter() - begin)
        found = {"seconds": min(times), "peak": peak_memory(), "loading": loading, "loss": loss}
        sys.stdout.write(json.dumps(found) + "\n")


def child(store: Path, processes: int, steps: int, block_bytes: int) -> dict[str, float]:
    """The slowest and largest of the processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    program = ["-m", "tests.bench.phi_ranks", str(store), str(steps), str(block_bytes)]
    _, printed = run(sys.executable, *(launcher if processes > 1 else []), *program)
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert len(found) == processes, printed
    return {key: max(one[key] for one in found) for key in found[0]}


def main(n_class: int) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = OUT / "phi-ranks.zarr"
    shutil.rmtree(store, ignore_errors=True)
    actstore("synth", store, "--rows", str(2 * n_class), "--classes", str(n_class))
    actstore("means", store)
    rounds, steps = (ROUNDS, 2) if n_class <= 5000 else (1, 1)
    few = min(predictor.training.phi.LOGIT_BYTES, n_class * n_class // 2)  # at least eight blocks
    contenders = [(count, name) for count in (1, 2) for name in (WHOLE, BLOCKS)]
    found: dict[tuple[int, str], list[dict[str, float]]] = {one: [] for one in contenders}
    for _ in range(rounds):
        for count, name in contenders:
            found[count, name].append(child(store, count, steps, 1 << 62 if name == WHOLE else few))
            print(f"{count} {name}: {found[count, name][-1]}", file=sys.stderr, flush=True)
    # too few to take a median of: the least disturbed
    time_of = {one: min(each["seconds"] for each in each_time) for one, each_time in found.items()}
    peak_of = {one: max(each["peak"] for each in each_time) for one, each_time in found.items()}
    first = time_of[1, WHOLE], peak_of[1, WHOLE]
    results = []
    for count, name in contenders:
        what = f"{n_class:,} classes, {count} process{'es' if count > 1 else ''}, {name}"
        seconds, peak = time_of[count, name], peak_of[count, name]
        results.append(Result(f"step: {what}", seconds, "s", "1 process, at once", first[0], first[0] / seconds))
        results.append(Result(f"peak of each: {what}", peak / 1e6, "MB", "1 process, at once", first[1] / 1e6,
                              first[1] / peak))  # fmt: skip
    results.append(Result("first step and before it, 1 process, in blocks", found[1, BLOCKS][0]["loading"] / 1e6, "MB"))
    report("phi_ranks", results, ["2 processes <= 0.6x the time of one", "blocks <= 1.1x the time of all at once"])
    losses = [each["loss"] for each_time in found.values() for each in each_time]
    assert max(losses) - min(losses) < 1e-5 * max(losses), losses
    shutil.rmtree(store)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        measure_steps(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000)
