"""SIGKILL at random moments of a build of real JPEGs: byte-identical when resumed, no image twice or lost.

python -m tests.bench.kill_build [--kills N] [--images N]     20 kills of 2,000 images: over ten minutes on 2 busy cores
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import actstore
from actstore.compute.measure import Result
from tests.bench.build import unpack
from tests.bench.common import OUT, report
from tests.bench.kill import digest

BUILD = """
import sys
from pathlib import Path
from actstore.backbones.loading import load_backbone
from actstore.extraction.build import BuildOptions, build
from actstore.images.opening import open_images
backbone, sets = load_backbone("small", random_weights=True), open_images(sys.argv[1])
print("ready", flush=True)
options = BuildOptions("cpu", 16, int(sys.argv[3]), layout={"chunk_rows": 64})
build(sets, sys.argv[1], Path(sys.argv[2]), backbone, options)
"""


def start(folder: Path, store: Path, workers: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILD, str(folder), str(store), str(workers)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--images", type=int, default=2000)
    options = parser.parse_args()
    folder = unpack(options.images)
    (folder / "broken").mkdir(exist_ok=True)
    (folder / "broken" / "empty.jpg").write_bytes(b"")  # so that rows and images differ in number
    whole, killed = OUT / "whole.zarr", OUT / "killed.zarr"
    for store in (whole, killed):
        shutil.rmtree(store, ignore_errors=True)
    child = start(folder, whole, 0)
    begin = time.perf_counter()
    assert child.wait() == 0
    duration, expected, random = time.perf_counter() - begin, digest(whole), np.random.default_rng(0)
    kills = resumed = 0
    while kills < options.kills:
        for turn in range(int(random.integers(1, 5))):
            child = start(folder, killed, turn % 2)
            time.sleep(random.uniform(0, duration))
            kills += child.poll() is None
            child.send_signal(signal.SIGKILL)
            child.wait()
        assert start(folder, killed, 0).wait() == 0
        assert digest(killed) == expected, "a resumed store differs"
        resumed += 1
        ids = list(actstore.open(killed)["train"].ids)
        assert len(ids) == len(set(ids)) == options.images
        shutil.rmtree(killed)
    report(
        "kill_build",
        [Result("kills", kills, "times"), Result("resumed stores, all byte-identical", resumed, "stores")],
        ["every resumed store byte-identical, no image twice, none lost"],
    )
    shutil.rmtree(whole)


if __name__ == "__main__":
    main()
