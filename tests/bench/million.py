"""1.2 million x 2048 fp16 (4.9 GB): import, means, take, verify and their peak memory.

Where control groups can be made, `take` also runs inside one with 2 GB in all, page cache included.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from actstore.compute.measure import Result
from tests.bench.common import OUT, actstore, features, report, run

ROWS = 1_200_000
GROUP = Path("/sys/fs/cgroup/memory/actstore-bench")

TAKE = """
import sys, time, numpy as np, actstore
from pathlib import Path
group = Path(sys.argv[2])
if group.exists():
    (group / "cgroup.procs").write_text(str(__import__("os").getpid()))
train = actstore.open(sys.argv[1])["train"]
random = np.random.default_rng(0)
times = []
for _ in range(200):
    rows = random.integers(0, len(train), 900)
    begin = time.perf_counter()
    train.take(rows)
    times.append(time.perf_counter() - begin)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
anonymous = int(status["RssAnon"].split()[0]) * 1024
print(900 / np.median(times), 900 * 200 / sum(times), anonymous)
"""


def make_group(limit: int) -> bool:
    try:
        GROUP.mkdir(exist_ok=True)
        (GROUP / "memory.limit_in_bytes").write_text(str(limit))
    except OSError:
        return False
    return True


def main() -> None:
    if shutil.disk_usage(OUT.parent).free < 14e9:
        sys.exit("this benchmark needs 14 GB of free disk")
    size = ROWS * 4096 / 1e9
    values, labels = features(ROWS)
    store = OUT / "million.zarr"
    shutil.rmtree(store, ignore_errors=True)
    results = []
    for name, command in {
        "import": ("import", values, store, "--labels", labels),
        "means": ("means", store),
        "verify": ("verify", store),
    }.items():
        seconds, peak, _ = actstore(*command)
        results += [
            Result(f"{name}, start-up included", seconds, "s"),
            Result(f"{name}, rate", size / seconds, "GB/s"),
            Result(f"{name}, peak resident memory", peak / 1e6, "MB"),
        ]
    values.unlink()
    labels.unlink()
    _, printed = run(sys.executable, "-c", TAKE, store, "/nowhere")
    median, overall, anonymous = map(float, printed.split())
    results += [
        Result("take 900 random rows, median", median, "rows/s"),
        Result("take, all 200 turns from the first", overall, "rows/s"),
        Result("take, memory of its own (mapped pages aside)", anonymous / 1e6, "MB"),
    ]
    if make_group(2_000_000_000):
        os.sync()
        _, printed = run(sys.executable, "-c", TAKE, store, GROUP)
        median, overall, _ = map(float, printed.split())
        results.append(Result("take inside a control group of 2 GB, median", median, "rows/s"))
        peak = int((GROUP / "memory.max_usage_in_bytes").read_text())
        results.append(Result("take, most memory of that group, page cache included", peak / 1e6, "MB"))
        GROUP.rmdir()
    report("million", results, ["import, means, take and verify all work in 2 GB of memory"])
    shutil.rmtree(store)


if __name__ == "__main__":
    main()
