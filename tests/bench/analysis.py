"""What other analyses do with a store: `python -m tests.bench.analysis [xarray accuracy compare knn]`.

xarray    900 random rows of 100,000 x 2048 fp16: `take`, xarray with our engine, xarray over zarr-python
accuracy  every measure of `compare` for 5,000 rows, against plain float64
compare   two stores of 100,000 x 2048 in a process of its own: seconds and memory
knn       the graph of 200,000 x 1024 and faiss's exact index, in turns
"""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import xarray
import zarr
from numpy.typing import NDArray

import actstore as library
from actstore.analysis.xarray_backend import ActstoreBackend
from actstore.compute.process import Result, seconds
from tests.bench.common import OUT, actstore, alternate, rate, report

ROWS, DIM = 100_000, 2048
TAKEN = 900
GRAPH_ROWS, GRAPH_DIM, K, ASKED = 200_000, 1024, 15, 2048
TURN = 15.0  # seconds between two turns of faiss
CHECKED = 5_000  # rows of the comparison with float64, all of them in its RDMs


def make_pair(rows: int) -> list[Path]:
    """Generated rows, and half of their features, turned, beside noise: two representations of the same images."""
    paths = [OUT / "data" / f"analysis-{name}-{rows}x{DIM}.zarr" for name in ("one", "other")]
    if not all(path.exists() for path in paths):
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)
        random = np.random.default_rng(0)
        source = OUT / "data" / f"analysis-source-{rows}.zarr"
        actstore("synth", source, "--rows", str(rows), "--dim", str(DIM), "--shuffled")
        turn = np.linalg.qr(random.standard_normal((DIM, DIM)))[0][: DIM // 2].astype("f4")
        stores = [library.create(path, classes=[], dim=DIM) for path in paths]
        with ExitStack() as open_writers:
            writers = [open_writers.enter_context(store.writer("train")) for store in stores]
            done = 0
            for block in library.open(source)["train"].blocks(dtype="f4"):
                ids = [f"image{row}" for row in range(done, done + len(block))]
                noise = 0.3 * random.standard_normal(block.shape, np.float32)
                for writer, values in zip(writers, (block, block[:, : DIM // 2] @ turn + noise), strict=True):
                    writer.append(values, None, ids)
                done += len(block)
        shutil.rmtree(source)
    return paths


def reference(one: NDArray[Any], other: NDArray[Any], k: int = 10) -> dict[str, float]:
    """Every measure by its definition, with whole matrices of float64."""
    from scipy.stats import spearmanr

    x, y = (rows - rows.mean(0) for rows in (one, other))
    upper = np.triu_indices(len(one), 1)
    rdms = [1 - np.corrcoef(rows)[upper] for rows in (one, other)]
    near = []
    for rows in (one, other):
        units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        cosines = units @ units.T
        np.fill_diagonal(cosines, -2)
        near.append(np.argsort(-cosines, axis=1)[:, :k].tolist())
    return {
        "cka": np.linalg.norm(x.T @ y) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)),
        "procrustes": float(np.linalg.norm(x.T @ y, "nuc") / (np.linalg.norm(x) * np.linalg.norm(y))),
        "rsa-spearman": float(spearmanr(*rdms).statistic),
        "rsa-pearson": float(np.corrcoef(*rdms)[0, 1]),
        "knn": float(np.mean([len(set(a) & set(b)) / k for a, b in zip(*near, strict=True)])),
    }


def bench_accuracy() -> None:
    splits = [library.open(path)["train"] for path in make_pair(CHECKED)]
    expected = reference(*(split.take(range(CHECKED), dtype="f8") for split in splits))
    found = library.compare(*splits, sample=CHECKED, resamples=0)
    results = [
        Result(f"off float64, {CHECKED:,} rows: {each.measure}", abs(each.value - expected[each.measure]), "")
        for each in found.similarities
    ]
    report("analysis-accuracy", results, ["all measures within 1e-5 of float64"])


def bench_compare() -> None:
    seconds, peak, printed = actstore("compare", *make_pair(ROWS), "--json")
    print(json.dumps(json.loads(printed)["similarities"], indent=1))
    results = [
        Result(f"compare {ROWS:,} x {DIM}, five measures with intervals", seconds, "s"),
        Result("  memory, mapped rows included", peak / 1e9, "GB"),
    ]
    report("analysis-compare", results, ["at most 2 GB"])


def bench_xarray() -> None:
    path = make_pair(ROWS)[0]
    split = library.open(path)["train"]
    ours = xarray.open_dataset(path, engine=ActstoreBackend, group="train")
    theirs = xarray.open_zarr(path, group="train", consolidated=False, chunks=None)
    random = np.random.default_rng(0)
    for block in split.blocks():  # every page once
        block[:, ::2048].sum(dtype=np.float32)

    def draw() -> NDArray[np.int64]:
        return random.integers(0, ROWS, TAKEN)

    fast = {"take": lambda: split.take(draw()), "ours": lambda: ours.activations[draw()].values}
    taken = alternate({**fast, "mask": lambda: ours.activations[_mask(draw())].values}, rounds=300, warm_up=20)
    slow = {"ours": fast["ours"], "zarr": lambda: theirs.activations[draw()].values}
    slowly = alternate(slow, rounds=5)
    what = f"{TAKEN} of {ROWS:,} x {DIM} through xarray"
    results = [
        rate(what, taken["ours"], "take", taken["take"], TAKEN, "rows/s"),
        rate("  by a mask", taken["mask"], "take", taken["take"], TAKEN, "rows/s"),
        rate(what, slowly["ours"], f"xarray over zarr {zarr.__version__}", slowly["zarr"], TAKEN, "rows/s"),
    ]
    report("analysis-xarray", results, [">= 0.5x take", ">= 20x xarray over zarr-python"])


def _mask(rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    mask = np.zeros(ROWS, bool)
    mask[rows] = True
    return mask


def bench_knn() -> None:
    """All of our graph in a process of its own, index included. It is halted now and then, while faiss answers some of
    the rows, all at once, its best: both get the same machine."""
    import faiss
    from scipy.sparse import load_npz

    path, out = OUT / "data" / f"knn-{GRAPH_ROWS}x{GRAPH_DIM}.zarr", OUT / "graph.npz"
    if not path.exists():
        actstore("synth", path, "--rows", str(GRAPH_ROWS), "--dim", str(GRAPH_DIM), "--shuffled")
    split = library.open(path)["train"]
    units = split.f4[:]
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    flat = faiss.IndexFlatIP(GRAPH_DIM)
    flat.add(units)
    some = np.sort(np.random.default_rng(0).choice(GRAPH_ROWS, ASKED, replace=False))
    scores, rows = flat.search(units[some], K + 1)
    out.unlink(missing_ok=True)
    ours, theirs, peak = in_turns(["knn", str(path), str(out), "-k", str(K)], lambda: flat.search(units[some], K + 1))
    found = load_npz(out)[some].indices.reshape(ASKED, K)
    agree = _share_that_agrees(found, rows, scores, some, units)
    per_row = [ours / GRAPH_ROWS, statistics.mean(theirs) / ASKED]
    results = [
        rate(f"knn {GRAPH_ROWS:,} x {GRAPH_DIM}, k = {K}", per_row[0], "faiss IndexFlatIP", per_row[1], 1, "rows/s"),
        Result("  all of it", ours, "s"), Result("  memory, mapped rows included", peak / 1e9, "GB"),
        Result("  rows with faiss's neighbours, but for ties", agree, ""),
    ]  # fmt: skip
    report("analysis-knn", results, [">= 10x faiss IndexFlatIP", "the same ids but for ties"])


def in_turns(command: list[str], action: Callable[[], Any]) -> tuple[float, list[float], int]:
    """Seconds of an `actstore` command, of the action each time it ran while the command was halted, and the most bytes
    that the command held."""
    code = "from cli.actstore import main; main()"
    child = subprocess.Popen([sys.executable, "-c", code, *command])
    took, theirs, peak, begin = 0.0, list[float](), 0, time.perf_counter()
    while child.poll() is None:
        time.sleep(1)
        with suppress(OSError, StopIteration):  # it has ended meanwhile
            lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
            peak = max(peak, 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1]))
        if time.perf_counter() - begin > TURN and child.poll() is None:
            child.send_signal(signal.SIGSTOP)
            took += time.perf_counter() - begin
            theirs.append(seconds(action))
            begin = time.perf_counter()
            child.send_signal(signal.SIGCONT)
    if child.returncode:
        raise SystemExit(f"{command} ended with {child.returncode}")
    took += time.perf_counter() - begin
    return took, theirs or [seconds(action)], peak


def _share_that_agrees(
    ours: NDArray[Any], theirs: NDArray[Any], scores: NDArray[Any], own: NDArray[Any], units: NDArray[Any]
) -> float:
    """Of rows: all of our neighbours are among faiss's, or as near in float32 as the last of them."""
    agree = 0
    for mine, other, score, row in zip(ours, theirs, scores, own, strict=True):
        kept = (other != row).nonzero()[0][:K]
        strange = np.setdiff1d(mine, other[kept])
        agree += bool((units[strange].astype("f8") @ units[row].astype("f8") >= score[kept[-1]] - 1e-6).all())
    return agree / len(ours)


PARTS = {"xarray": bench_xarray, "accuracy": bench_accuracy, "compare": bench_compare, "knn": bench_knn}


def main() -> None:
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main()
