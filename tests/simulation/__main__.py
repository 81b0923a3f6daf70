"""Try orders of commands for some minutes, or repeat one.

python -m tests.simulation --minutes 1
python -m tests.simulation --only index-index --minutes 5 --workers 1
python -m tests.simulation --repeat 'append-read@healthy.disk/a12.b' --trace
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from tests.simulation.exploration import explore
from tests.simulation.tally import Found, Tally, describe, table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long orders are tried, 1 by default")
    parser.add_argument("--orders", type=int, help="at most so many of each scenario")
    parser.add_argument("--only", action="append", default=[], help="scenarios whose name contains this")
    parser.add_argument("--workers", type=int, default=2, help="processes, 2 by default")
    parser.add_argument("--until-found", action="store_true", help="leave a scenario at its first finding")
    parser.add_argument("--repeat", metavar="TOKEN", help="try one order and say what is found")
    parser.add_argument("--trace", action="store_true", help="with --repeat: every operation, in order")
    parser.add_argument("--json", action="store_true", help="the outcome as JSON")
    options = parser.parse_args()
    if options.repeat is not None:
        return _repeat(options.repeat, options.trace)
    from tests.simulation.scenarios import SCENARIOS

    names = [name for name in SCENARIOS if not options.only or any(part in name for part in options.only)]
    if not names:
        parser.error(f"no scenario is called {' or '.join(options.only)}; there are {', '.join(SCENARIOS)}")

    def say(tally: Tally, found: Found) -> None:
        print(describe(tally, found), file=sys.stderr, flush=True)

    tallies = explore(names, 60 * options.minutes, options.workers, options.orders, options.until_found, say)
    print(json.dumps([_facts(tally) for tally in tallies], indent=2) if options.json else table(tallies))
    return 1 if any(tally.found for tally in tallies) else 0


def _facts(tally: Tally) -> dict[str, Any]:
    return {**asdict(tally), "traces": len(tally.traces)}


def _repeat(token: str, trace: bool) -> int:
    from tests.simulation.trial import laboratory, parse_token

    scenario, schedule = parse_token(token)
    with laboratory() as bench:
        trial = bench.try_order(scenario, schedule)
    if trace:
        for number, step in enumerate(trial.steps, 1):
            print(f"{number:5} {step}")
    for command, stops in zip(scenario.commands, trial.stops, strict=True):
        print(f"{command.name}: {stops} stops")
    for finding in trial.findings:
        print(finding)
    print(f"{len(trial.findings)} findings")
    return 1 if trial.findings else 0


if __name__ == "__main__":
    sys.exit(main())
