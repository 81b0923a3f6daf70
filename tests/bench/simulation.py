"""Two or three commands at once on one store, in as many orders as an hour allows: no rule of the oracle is broken.

    python -m tests.bench.simulation --minutes 60

The table of orders and findings goes to bench-out/simulation.txt; see docs/simulation.md.
"""

from __future__ import annotations

import argparse
import sys

from actstore.compute.process import Result
from tests.bench.common import OUT, report
from tests.simulation.exploration import explore
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.tally import Found, Tally, describe, table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    def say(tally: Tally, found: Found) -> None:
        print(describe(tally, found), file=sys.stderr, flush=True)

    tallies = explore(list(SCENARIOS), 60 * options.minutes, options.workers, said=say)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "simulation.txt").write_text(table(tallies) + "\n")
    print(table(tallies))
    orders, seconds = sum(tally.orders for tally in tallies), sum(tally.seconds for tally in tallies)
    kinds = sum(len(tally.found) for tally in tallies)
    report(
        "simulation",
        [
            Result("orders tried", orders, "orders"),
            Result("of these with different operations", sum(len(tally.traces) for tally in tallies), "orders"),
            Result("orders a second and process", orders / max(seconds, 1e-9), "1/s"),
            Result("kinds of findings", kinds, "kinds"),
        ],
        ["100,000 different orders in an hour", "no findings"],
    )
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
