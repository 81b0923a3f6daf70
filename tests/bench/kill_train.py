"""`ppa train` killed at random moments and resumed: the weights against those of an uninterrupted run, bit by bit."""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from safetensors.torch import load_file

from actstore.compute.measure import Result
from tests.bench.common import OUT, actstore, report

BATCHES = 10


def train(store: Path, out: Path, epochs: int) -> list[str | Path]:
    code = "from cli.ppa import main; main()"
    settings = ["--epochs", str(epochs), "--batches", str(BATCHES), "--checkpoint-seconds", "0"]
    return [sys.executable, "-c", code, "train", "--phi", "phi2", "--store", store, "--out", out, *settings]


def same(first: Path, second: Path) -> bool:
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (first, second))
    return ours.keys() == theirs.keys() and all(bool((ours[name] == theirs[name]).all()) for name in ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    folder = OUT / "kill-train"
    shutil.rmtree(folder, ignore_errors=True)
    store = folder / "x.zarr"
    actstore("synth", store, "--rows", "20000", "--dim", "256", "--classes", "100")
    begin = time.perf_counter()
    subprocess.run(train(store, folder / "whole", options.epochs), check=True, capture_output=True)
    longest = time.perf_counter() - begin
    chance, kills, finished, identical = random.Random(0), 0, 0, 0
    while kills < options.kills:
        out, before = folder / f"killed-{finished}", kills
        while True:
            begin = time.perf_counter()
            command = train(store, out, options.epochs)
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                assert child.wait(timeout=chance.uniform(0.3, 1) * longest) == 0
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                kills += 1
                continue
            break
        if kills == before:  # the machine is faster than it was: later runs are killed sooner
            longest = min(longest, time.perf_counter() - begin)
        finished += 1
        identical += same(folder / "whole", out)
    report(
        "kill_train",
        [Result("kills", kills, ""), Result("resumed runs finished", finished, ""), Result("identical", identical, "")],
        ["every resumed run ends with the weights of the uninterrupted one, bit for bit"],
    )
    assert identical == finished
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
