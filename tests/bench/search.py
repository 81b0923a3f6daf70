"""Searches beside their peers: exact, bounded and approximate, on real and on generated rows; all take turns.

python -m tests.bench.search [--rows 1200000] [--rounds N] [--threads N]
    [--only synthetic,faiss,filters,neighbours,append,real,isotropic,approximate,processors]
    | --peers | --before TREE [--only neighbours]

TREE: a checkout of earlier code, its compiled loops built (python setup.py build_ext --inplace).

At 1.2 million rows without `approximate`: below 20 minutes on two cores, 10 GB of disk in bench-out, 13 GB of memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from tests.bench.search_approximate import approximate
from tests.bench.search_exact import against_faiss, isotropic, neighbours, real, synthetic
from tests.bench.search_living import appending, filters
from tests.bench.search_processors import before, processors

PARTS = ("synthetic", "faiss", "filters", "neighbours", "append", "real", "isotropic", "approximate", "processors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--peers", action="store_true", help="Other libraries alone, at 200,000 rows at most.")
    parser.add_argument("--before", type=Path, metavar="TREE", help="Bounded searches, or neighbours, beside TREE's.")
    parser.add_argument("--threads", type=int, help="By default those of torch: one per core.")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    rows, rounds, few = options.rows, options.rounds, min(options.rows, 200_000)
    if options.peers:
        from tests.bench.search_peers import main as peers

        return peers(few, rounds)
    if options.before and options.only == "neighbours":
        return neighbours(few, max(1, rounds - 3), options.before)
    if options.before:
        return before(rows, rounds, options.before)
    parts: dict[str, Callable[[], None]] = {
        "synthetic": lambda: synthetic(rows, rounds),
        "faiss": lambda: against_faiss(rows, max(2, rounds - 2)),
        "filters": lambda: filters(rows, rounds),
        "neighbours": lambda: neighbours(few, max(1, rounds - 3)),
        "append": lambda: appending(few),
        "real": lambda: real(4 * rounds),
        "isotropic": lambda: isotropic(few, rounds),
        "approximate": lambda: approximate(rows, rounds),
        "processors": lambda: processors(rows, rounds),
    }
    for name in options.only.split(","):
        if name not in parts:
            parser.error(f"--only takes {', '.join(PARTS)}, got {name}")
        parts[name]()


if __name__ == "__main__":
    main()
