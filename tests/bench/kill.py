"""SIGKILL at 50 random moments of an import: every resume must end byte-identical to the uninterrupted store."""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from actstore.compute.measure import Result
from tests.bench.common import OUT, features, report

ROWS, DIM, KILLS = 60_000, 512, 50


def digest(store: Path) -> dict[str, str]:
    files = (file for file in store.rglob("*") if file.is_file())
    return {str(file.relative_to(store)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def start(values: Path, labels: Path, ids: Path, store: Path) -> subprocess.Popen[str]:
    code = """
import sys
from pathlib import Path
from actstore.tables.importing import ImportRequest, import_file
values, labels, ids, store = map(Path, sys.argv[1:])
print("ready", flush=True)
import_file(ImportRequest(values, labels=labels, ids=ids), store, chunk_rows=1024)
"""
    command = [sys.executable, "-c", code, *map(str, (values, labels, ids, store))]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def main() -> None:
    values, labels = features(ROWS, DIM)
    ids = OUT / "data" / "ids.txt"
    ids.write_text("".join(f"n{row:08d}/image{row}.jpg\n" for row in range(ROWS)))
    whole, killed = OUT / "whole.zarr", OUT / "killed.zarr"
    for store in (whole, killed):
        shutil.rmtree(store, ignore_errors=True)
    child = start(values, labels, ids, whole)
    begin = time.perf_counter()
    assert child.wait() == 0
    duration = time.perf_counter() - begin
    expected, random = digest(whole), np.random.default_rng(0)
    resumed = kills = late = 0
    while kills < KILLS:
        # Kill once or a few times, then let it end: moments over the whole run, the first and last included.
        for _ in range(int(random.integers(1, 4))):
            child = start(values, labels, ids, killed)
            time.sleep(random.uniform(0, duration))
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)
                kills += 1
            else:
                late += 1
                duration *= 0.9  # a busy machine made the first run look long
            child.wait()
        assert start(values, labels, ids, killed).wait() == 0
        assert digest(killed) == expected, "a resumed store differs"
        resumed += 1
        shutil.rmtree(killed)
    report(
        "kill",
        [
            Result("kills in the middle of an import", kills, "times"),
            Result("tries that came after its end, not counted", late, "times"),
            Result("resumed stores, all byte-identical", resumed, "stores"),
        ],
        ["50 kills, every resume byte-identical"],
    )
    shutil.rmtree(whole)


if __name__ == "__main__":
    main()
