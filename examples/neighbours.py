"""Nearest rows of one store for every row of another: copies, retrieval. `python neighbours.py [STORE OTHER]`"""

import sys
import tempfile

import numpy as np

import actstore


def generated(folder: str) -> list[str]:
    """A store, and another that holds some of its rows with a little noise."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((1000, 64)).astype(np.float32)
    copies = rows[::50] + 0.1 * random.standard_normal((20, 64)).astype(np.float32)
    others = np.concatenate([random.standard_normal((80, 64)).astype(np.float32), copies])
    for name, values in (("first", rows), ("other", others)):
        ids = [f"{name}{row}" for row in range(len(values))]
        actstore.from_arrays(f"{folder}/{name}.zarr", {"train": (values, None, ids)})
    return [f"{folder}/first.zarr", f"{folder}/other.zarr"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        paths = sys.argv[1:3] if len(sys.argv) > 2 else generated(folder)
        first, other = (actstore.open(path)["train"] for path in paths)
        done = 0
        for block in other.blocks(1024):
            scores, rows = first.search(block, k=1)
            for row in np.flatnonzero(scores[:, 0] > 0.95).tolist():
                print(f"{other.ids[done + row]} is like {first.ids[int(rows[row, 0])]}: {scores[row, 0]:.3f}")
            done += len(block)
