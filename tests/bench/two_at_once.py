"""Two processes at once on one store: what they leave is compared with brute force.

python -m tests.bench.two_at_once [--rounds N] [--only index,index-kill,rechunk,repair] [--python PYTHON] [--json FILE]

index: two `actstore index` extend a bounded index after an append; index-kill: the later of them is killed while it
works. rechunk: a writer of a store object that was opened before `actstore rechunk` ran. repair: `actstore verify
--repair` of a split with a slow source, while rows are committed to a later split. Of each round: is every default
search the brute-force answer, is every committed row and label there, does `verify` agree, and did whatever failed say
so in a sentence. PYTHON: of another tree, to see what its code does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROWS, MORE, DIM, CLASSES = 12_288, 50_000, 256, 10  # whole chunks of every size that is tried
CLI = "from cli.actstore import main; main()"
CHECK = """
import json, sys
import numpy as np
import actstore
from actstore.search import bounded

bounded._FEWEST = 100
path, split, values, labels = sys.argv[1:5]
opened = actstore.open(path)[split]
values, labels = np.load(values), np.load(labels)
both = min(len(opened), len(values))
wrong = {
    "number of rows": abs(len(opened) - len(values)),
    "rows": (opened[:both] != values[:both]).any(1).sum(),
    "labels": (opened.labels[:both] != labels[:both]).sum(),
}
queries = values[:: max(1, len(values) // 16)].astype(np.float64) + 0.01
units = values.astype(np.float64) / np.linalg.norm(values.astype(np.float64), axis=1, keepdims=True)
best = np.argmax(queries / np.linalg.norm(queries, axis=1, keepdims=True) @ units.T, axis=1)
wrong["answers"] = int((opened.search(queries.astype(np.float32), 1)[1][:, 0] != best).sum())
from actstore.upkeep.verify import verify_store
for fault in verify_store(actstore.open(path)):
    print(fault, file=sys.stderr)
    wrong["faults"] = 1
print(json.dumps({key: int(value) for key, value in wrong.items()}))
"""
WRITE = """
import sys
import numpy as np
import actstore
import actstore.writing.split_writer

store = actstore.open(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
with store.writer(sys.argv[2]) as writer:
    writer.append(np.load(sys.argv[3]), np.load(sys.argv[4]))
"""


@dataclass
class Bench:
    """One folder for all rounds; `python` runs the code that is tried."""

    folder: Path
    python: str
    seed: int

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        numbers = np.random.default_rng(self.seed)
        rows = numbers.standard_normal((ROWS + MORE, DIM)) * 0.97 ** np.arange(DIM)  # so that an index pays
        self.save("all", rows.astype(np.float16), numbers.integers(1, CLASSES, ROWS + MORE))
        self.save("first", *(part[:ROWS] for part in self.load("all")))
        self.save("more", *(part[ROWS:] for part in self.load("all")))

    def save(self, name: str, values: NDArray[np.float16], labels: NDArray[np.int64]) -> None:
        np.save(self.folder / f"{name}.npy", values)
        np.save(self.folder / f"{name}-labels.npy", labels)

    def load(self, name: str) -> tuple[NDArray[np.float16], NDArray[np.int64]]:
        return np.load(self.folder / f"{name}.npy"), np.load(self.folder / f"{name}-labels.npy")

    def begin(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=Path(self.python).parent.parent.parent, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def actstore(self, *arguments: object) -> subprocess.Popen[str]:
        return self.begin("-c", CLI, *map(str, arguments))

    def add(self, command: str, name: str, store: Path, *more: str) -> subprocess.Popen[str]:
        labels = self.folder / f"{name}-labels.npy"
        return self.actstore(command, self.folder / f"{name}.npy", store, "--labels", labels, *more)

    def done(self, process: subprocess.Popen[str]) -> str:
        """What a process says; empty where it ended well."""
        said = process.communicate()
        if process.returncode == 0:
            return ""
        return said[1].strip() or f"ended with {process.returncode}"

    def must(self, process: subprocess.Popen[str]) -> None:
        if said := self.done(process):
            raise SystemExit(f"a preparation failed: {said}")

    def check(self, store: Path, split: str, name: str) -> Counter[str]:
        """What is wrong with a split that must hold these rows."""
        process = self.begin("-c", CHECK, *map(str, (store, split, self.folder / f"{name}.npy",
                             self.folder / f"{name}-labels.npy")))  # fmt: skip
        out, error = process.communicate()
        print(error.strip(), file=sys.stderr, end="\n" if error else "")
        if process.returncode:
            return Counter({"unreadable": 1})
        return Counter({f"wrong {key}": value for key, value in json.loads(out).items() if value})

    def prepare(self, name: str, steps: Callable[[Path], None]) -> Path:
        """A copy of the store that these steps make once."""
        kept, store = self.folder / f"{name}.prepared", self.folder / "x.zarr"
        self.clear()
        if not kept.exists():
            steps(store)
            kept.mkdir()
            for part in self.folder.glob("x.zarr*"):
                part.rename(kept / part.name)
        shutil.copytree(kept, self.folder, dirs_exist_ok=True)
        return store

    def clear(self) -> None:
        for left in self.folder.glob("x.zarr*"):
            shutil.rmtree(left)


def outcome(said: str) -> Counter[str]:
    """How a process ended: well, with a sentence, or with something else."""
    if not said:
        return Counter({"ended well": 1})
    is_sentence = said.startswith("Error: ") and "Traceback" not in said and "No such file" not in said
    if not is_sentence:
        print(said, file=sys.stderr)
    return Counter({"refused with a sentence" if is_sentence else "no sentence": 1})


def mapped(process: int, folder: str) -> set[str]:
    """Names of the files below a folder of this name that a process has mapped (of Linux)."""
    try:
        lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {line.rpartition("/")[2].removesuffix(" (deleted)") for line in lines if f"/{folder}/" in line}


def two_indexes(bench: Bench, kill: bool) -> Counter[str]:
    def steps(store: Path) -> None:
        bench.must(bench.add("import", "first", store))
        bench.must(bench.actstore("index", store))
        bench.must(bench.add("append", "more", store))

    store = bench.prepare("index", steps)
    first = bench.actstore("index", store)
    time.sleep(bench.random.uniform(0, 0.3))
    second = bench.actstore("index", store)
    if not kill:
        found = outcome(bench.done(first)) + outcome(bench.done(second))
        return found + bench.check(store, "train", "all")
    known = {path.name for path in (bench.folder / "x.zarr.search/train").iterdir()}
    while first.poll() is None and second.poll() is None and mapped(second.pid, "x.zarr.search") <= known:
        time.sleep(0.002)
    time.sleep(bench.random.uniform(0.0, 0.05))
    second.send_signal(signal.SIGKILL)
    second.communicate()
    return outcome(bench.done(first)) + bench.check(store, "train", "all")


def rechunk_and_writer(bench: Bench) -> Counter[str]:
    rows, after = bench.random.sample([256, 1024, 4096], 2)
    store = bench.prepare(
        f"rechunk-{rows}", lambda store: bench.must(bench.add("import", "first", store, "--chunk-rows", str(rows)))
    )
    more = [str(bench.folder / name) for name in ("more.npy", "more-labels.npy")]
    writer = bench.begin("-c", WRITE, str(store), "train", *more)
    assert writer.stdout is not None
    assert writer.stdin is not None
    writer.stdout.readline()
    rechunk = bench.actstore("rechunk", store, "--chunk-rows", after)
    found: Counter[str] = Counter()
    if bench.random.random() < 0.5:
        found += outcome(bench.done(rechunk))
    else:
        fresh = bench.folder / "x.zarr.rechunked"
        while rechunk.poll() is None and not fresh.exists():
            time.sleep(0.005)
        time.sleep(bench.random.uniform(0, 0.3))
    writer.stdin.write("go\n")
    writer.stdin.flush()
    last = (writer.communicate()[1].strip().splitlines() or [""])[-1]
    is_written = writer.returncode == 0
    found += outcome("" if is_written else last.replace("actstore.errors.", "Error: ", 1))
    if found.total() != 2:
        found += outcome(bench.done(rechunk))
    return found + bench.check(store, "train", "all" if is_written else "first")


def repair_and_commit(bench: Bench) -> Counter[str]:
    """The first split's rows come from a csv, which takes a while to read."""

    def steps(store: Path) -> None:
        values, labels = bench.load("first")
        slow = bench.folder / "slow.csv"
        slow.write_text("\n".join(",".join(map(str, row)) for row in values.tolist()) + "\n")
        np.save(bench.folder / "slow-labels.npy", labels)
        bench.must(bench.actstore("import", slow, store, "--split", "a", "--labels", bench.folder / "slow-labels.npy"))
        bench.must(bench.add("import", "first", store, "--split", "b"))

    store = bench.prepare("repair", steps)
    chunk = store / "b/labels/c/0"
    sound = chunk.read_bytes()
    flip(store / "a/activations/c/0/0")
    flip(chunk)
    more = [str(bench.folder / name) for name in ("more.npy", "more-labels.npy")]
    append = bench.begin("-c", WRITE, str(store), "b", *more)
    assert append.stdout is not None
    assert append.stdin is not None
    append.stdout.readline()
    repair = bench.actstore("verify", store, "--repair")
    time.sleep(bench.random.uniform(1.5, 6.0))
    chunk.write_bytes(sound)  # mended by other means: an append to a damaged split is refused
    append.stdin.write("go\n")
    append.stdin.flush()
    last = (append.communicate()[1].strip().splitlines() or [""])[-1]
    found = outcome("" if append.returncode == 0 else last.replace("actstore.errors.", "Error: ", 1))
    found += outcome(bench.done(repair))
    return found + bench.check(store, "b", "all" if append.returncode == 0 else "first")


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[1001] ^= 4
    file.write_bytes(data)


TRIALS: dict[str, Callable[[Bench], Counter[str]]] = {
    "index": lambda bench: two_indexes(bench, kill=False),
    "index-kill": lambda bench: two_indexes(bench, kill=True),
    "rechunk": rechunk_and_writer,
    "repair": repair_and_commit,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--only", default=",".join(TRIALS))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results, begin = {}, time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), options.python, options.seed)
        for trial in options.only.split(","):
            total: Counter[str] = Counter()
            for _ in range(options.rounds):
                total += TRIALS[trial](bench)
            results[trial] = dict(sorted(total.items()))
            print(f"{trial}: {options.rounds} rounds, {results[trial]}, {time.monotonic() - begin:.0f} s", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2))
    good = {"ended well", "refused with a sentence"}
    if any(set(found) - good for found in results.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
