"""phi2 on a `simple` backbone, on the glyph tasks of tests.bench.meta: against the same network untrained.

`python -m tests.bench.meta_phi --epochs 2`: pretraining, the store, phi2 and 600 5-way 1-shot tasks of 100 held-out
categories; all steps together count as its training.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from actstore.compute.process import Result
from tests.bench.common import OUT, report, run
from tests.bench.meta import IMAGES, SIDE, SIZE, TASKS


def tool(name: str, *arguments: Any) -> str:
    """Run a command of `actstore` or `ppa` in a process of its own."""
    return run(sys.executable, "-c", f"from cli.{name} import main; main()", *map(str, arguments))[1]


def accuracy(store: Path, *methods: Any) -> float:
    sizes = ("--way", SIZE.way, "--shots", SIZE.shots, "--queries", SIZE.queries, "--tasks", TASKS)
    (row,) = json.loads(tool("ppa", "episodes", "--store", store, *sizes, *methods, "--json"))[:1]
    print(row, flush=True)
    return float(row["one_shot"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2, help="of pretraining")
    given = parser.parse_args()
    folder = OUT / "meta-phi"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    network, untrained, store = folder / "net", folder / "untrained.zarr", folder / "glyphs.zarr"
    build = ("build", IMAGES)
    tool("actstore", *build, untrained, "--backbone", "simple", "--random-weights")
    before = accuracy(untrained, "--methods", "class-mean")
    begin = time.perf_counter()
    settings = ("--preset", "quick", "--backbone", "simple", "--image-size", SIDE, "--epochs", given.epochs)
    tool("ppa", "pretrain", IMAGES, *settings, "--out", network)
    tool("actstore", *build, store, "--backbone", "simple", "--weights", network / "best.safetensors")
    tool("ppa", "train", "--phi", "phi2", "--preset", "code", "--epochs", 8, "--store", store, "--out", folder / "phi2")
    seconds = time.perf_counter() - begin
    after = accuracy(store, "--methods", "none", "--phi", folder / "phi2")
    report(
        "meta_phi",
        [
            Result("phi2 on simple, 5-way 1-shot", after, "%", "untrained, class mean", before, after / before),
            Result("pretraining, store and phi2", seconds, "s"),
            Result("load at the end", os.getloadavg()[0], ""),
        ],
        ["above its untrained start and nearest neighbour on pixels (tests.bench.meta)", "within 5 minutes"],
    )
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
