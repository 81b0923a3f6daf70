"""The bounded search by the compiled loops of each processor that this one can play, and by torch as it would be there;
and beside that of an earlier tree.

Each in a process of its own that searches when it is asked to, for other queries each time; all take turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actstore.compute.process import Result
from actstore.search.compiled import SWITCH, able_processors
from tests.bench.common import OUT, ROOT, report
from tests.bench.search_common import BATCH, DIM, Action, K, bounded_of, held_out, in_turns, synthetic_store

_TORCH = {  # what torch and its libraries are limited to, to be those of another processor
    "avxvnni": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2_VNNI", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}
_CHILD = """
import hashlib, sys, time
import numpy as np
import actstore
from actstore.search import BoundedSearch

engine, queries = BoundedSearch(actstore.open(sys.argv[1])["train"]), np.load(sys.argv[2])
found = engine.search(queries, int(sys.argv[3]))
print(hashlib.sha256(found[0].tobytes() + found[1].tobytes()).hexdigest(), flush=True)
for turn, line in enumerate(sys.stdin):
    asked = queries.take(range(int(line) * turn, int(line) * (turn + 1)), 0, mode="wrap")
    begin, used = time.perf_counter(), time.process_time()
    engine.search(asked, int(sys.argv[3]))
    print(time.perf_counter() - begin, time.process_time() - used, flush=True)
"""


class Child:
    """Imports the packages of a tree. answers: a digest of the answers to all queries."""

    def __init__(
        self, store: str, queries: str, environment: dict[str, str], tree: Path = ROOT, k: int = K
    ) -> None:  # fmt: skip
        self._process = subprocess.Popen([sys.executable, "-c", _CHILD, store, queries, str(k)], text=True, cwd=tree,
                                         env={**os.environ, "PYTHONPATH": str(tree), **environment},
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        self.answers = self._line()
        self.used: dict[int, list[float]] = {}  # processor seconds of all threads

    def search(self, batch: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{batch}\n")
        self._process.stdin.flush()
        seconds, used = map(float, self._line().split())
        self.used.setdefault(batch, []).append(used)
        return seconds

    def close(self) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a search ended with code {self._process.wait()}")
        return line.strip()


def processors(rows: int, rounds: int) -> None:
    """Batches of 32 and 1: every processor's loops beside torch there, and beside the fastest loops here."""
    able = able_processors()
    split, queries = synthetic_store(rows)["train"], held_out(rows, 200)
    engine, results = bounded_of(split), []
    with ExitStack() as stack:
        children = _children(stack, str(split.store_path), queries, able)
        for batch in (BATCH, 1):
            actions: dict[str, Action] = {name: partial(child.search, batch) for name, child in children.items()}
            times = in_turns(actions, rounds)
            used = {name: float(np.median(child.used[batch][1:])) for name, child in children.items()}
            for kind, taken in (("", times), (", processor time", used)):
                for name in able:
                    peers = [peer for peer in (f"torch as on {name}", "torch as it is", able[0])
                             if peer in taken and peer != name]  # fmt: skip
                    what = f"{name}, {rows:,} x {DIM}, batch {batch}{kind}"
                    results += [_result(what, taken[name] / batch, peer, taken[peer] / batch) for peer in peers]
        verdict = "identical" if len({child.answers for child in children.values()}) == 1 else "DIFFERENT"
    notes = ["avx2 and avxvnni: 1.8x of torch, 0.4x of avx512", f"{len(queries)} queries by all of them: {verdict}"]
    report("search-processors", results, [*notes, f"widths {engine.levels.widths}"])


def before(rows: int, rounds: int, tree: Path) -> None:
    """Batches of 32, 8 and 1 by this tree and by an earlier one, on one store and one index."""
    split, asked = synthetic_store(rows)["train"], OUT / "queries-before.npy"
    widths = bounded_of(split).levels.widths
    np.save(asked, held_out(rows, 200))
    with ExitStack() as stack:
        sides = {name: Child(str(split.store_path), str(asked), {}, where)
                 for name, where in {"after": ROOT, "before": tree.resolve()}.items()}  # fmt: skip
        for child in sides.values():
            stack.callback(child.close)
        results = []
        for batch in (BATCH, 8, 1):
            taken = in_turns({name: partial(child.search, batch) for name, child in sides.items()}, rounds)
            used = {name: float(np.median(child.used[batch][1:])) for name, child in sides.items()}
            for kind, of in (("", taken), (", processor time", used)):
                what = f"bounded, {rows:,} x {DIM}, batch {batch}{kind}"
                results.append(_result(what, of["after"] / batch, tree.name, of["before"] / batch))
    verdict = "identical" if sides["after"].answers == sides["before"].answers else "DIFFERENT"
    report("search-before", results, [f"batch 1: 1.8x; answers {verdict}; widths {widths}"])


def _children(stack: ExitStack, store: str, queries: NDArray[np.float32], able: list[str]) -> dict[str, Child]:
    asked = OUT / "queries-processors.npy"
    np.save(asked, queries)
    environments = {name: {SWITCH: name} for name in able}
    environments |= {f"torch as on {name}": {SWITCH: "0", **_TORCH[name]} for name in able if name in _TORCH}
    environments["torch as it is"] = {SWITCH: "0"}
    children = {}
    for name, environment in environments.items():
        children[name] = Child(store, str(asked), environment)
        stack.callback(children[name].close)
    return children


def _result(name: str, ours: float, peer: str, theirs: float) -> Result:
    return Result(name, 1e3 * ours, "ms/query", peer, 1e3 * theirs, theirs / ours)
