"""Three `actstore append` to one split in a bucket, started together, round after round.

`python -m tests.bench.bucket_appends [--rounds 20]`. In every round each command must finish or be refused with a
sentence that works when it is followed (run again, it adds its rows), at least one must finish, and the rows must be
those that were there and those of the commands that finished, each once and whole.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import actstore
from actstore.upkeep.verify import verify_store
from tests.object_storage import running_server

ROWS, COMMANDS = 400, 3


def command(file: Path, place: str) -> list[str]:
    words = ["append", str(file), place, "--split", "train"]
    return [sys.executable, "-c", "from cli.actstore import main; main()", *words]


def read_order(rows: NDArray[np.float32], files: list[NDArray[np.float32]]) -> list[int]:
    """Whose rows follow each other; -1 for rows of nobody."""
    parts = [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]
    return [next((at for at, file in enumerate(files) if np.array_equal(part, file)), -1) for part in parts]


def one_round(place: str, folder: Path, files: list[NDArray[np.float32]]) -> str:
    """What is wrong, "" for nothing."""
    first = np.random.default_rng(9).random((500, 64), np.float32)
    store = actstore.from_arrays(place, {"train": (first, None)}, chunk_rows=128)
    paths = [folder / f"{number}.npy" for number in range(COMMANDS)]
    pipe = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command(path, place), **pipe) for path in paths]  # type: ignore[call-overload]
    said = [child.communicate()[1].strip() for child in running]
    done = [number for number, child in enumerate(running) if child.returncode == 0]
    rows = actstore.open(place)["train"][:]
    order = read_order(rows[len(first) :], files)
    print(f"{place}: finished {done}, in the order {order}; {[text for text in said if text]}", flush=True)
    if not done or sorted(order) != done or not np.array_equal(rows[: len(first)], first) or verify_store(store):
        return f"{place}: {done} finished, the rows are those of {order}"
    for number in set(range(COMMANDS)) - set(done):
        subprocess.run(command(paths[number], place), check=True, stdout=subprocess.DEVNULL)
    in_the_end = sorted(read_order(actstore.open(place)["train"][len(first) :], files))
    return "" if in_the_end == list(range(COMMANDS)) else f"{place}: repeated, the rows are those of {in_the_end}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    with running_server() as server, tempfile.TemporaryDirectory() as folder:
        files = [np.random.default_rng(number).random((ROWS, 64), np.float32) for number in range(COMMANDS)]
        for number, values in enumerate(files):
            np.save(Path(folder) / f"{number}.npy", values)
        faults = []
        for number in range(rounds):
            server.create_bucket(f"round-{number}")
            faults.append(one_round(f"s3://round-{number}/x.zarr", Path(folder), files))
    wrong = [fault for fault in faults if fault]
    print("\n".join([*wrong, f"{rounds - len(wrong)} of {rounds} rounds as they should be"]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
