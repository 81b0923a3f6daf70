"""The bounded search of an earlier commit, as a child process that searches when it is asked to.

Its packages are taken out of git into bench-out/COMMIT; it opens the same rows through a link, so that its index does
not meet ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from tests.bench.common import OUT, ROOT

COMMIT = "575c808"  # float16 levels, before there were 8-bit codes
_CHILD = """
import sys, time
import numpy as np
import actstore
from actstore.search import BoundedSearch
from actstore.search.kept_files import find

split, queries = actstore.open(sys.argv[1])["train"], np.load(sys.argv[2])
begin = time.perf_counter()
engine = BoundedSearch.build(split) if find(split, "bounded") is None else BoundedSearch(split)
print(engine.nbytes, time.perf_counter() - begin, flush=True)
for line in sys.stdin:
    count, k = map(int, line.split())
    begin = time.perf_counter()
    engine.search(queries[:count], k)
    print(time.perf_counter() - begin, flush=True)
"""


class EarlierBounded:
    """nbytes: of its index, built in `build_seconds` if it was not there."""

    def __init__(self, store: Path, queries: NDArray[np.float32]) -> None:
        tree, link, asked = OUT / COMMIT, store.with_name(f"{store.stem}-{COMMIT}.zarr"), OUT / "queries.npy"
        if not tree.exists():
            tree.mkdir(parents=True)
            packed = subprocess.run(
                ["git", "-C", ROOT, "archive", COMMIT, "actstore"], stdout=subprocess.PIPE, check=True
            )
            subprocess.run(["tar", "-x", "-C", tree], input=packed.stdout, check=True)
        if not link.exists():
            link.symlink_to(store.name)
        np.save(asked, queries)
        self._child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, link, asked], cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)},
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        size, seconds = self._answer().split()
        self.nbytes, self.build_seconds = int(size), float(seconds)

    def search(self, count: int, k: int) -> float:
        """Seconds that the child took for its first `count` queries."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{count} {k}\n")
        self._child.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the search of {COMMIT} ended with code {self._child.wait()}")
        return line

    def __enter__(self) -> EarlierBounded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.communicate()
