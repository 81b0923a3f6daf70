"""What was tried of each scenario, and what was found, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.simulation.conflicts import Places


@dataclass
class Found:
    """A kind of finding: the first order that showed it, after how many, and how often it came again."""

    kind: str
    detail: str
    token: str
    after: int
    times: int = 1


@dataclass
class Tally:
    """What was tried of a scenario. traces: of orders that differ in their operations; `idle` orders have brought no
    new one since the last."""

    name: str
    orders: int = 0
    traces: set[bytes] = field(default_factory=set, repr=False)
    idle: int = 0
    seconds: float = 0.0
    places: Places | None = None
    found: dict[str, Found] = field(default_factory=dict)

    def add_trace(self, trace: bytes) -> None:
        self.idle = self.idle + 1 if trace in self.traces else 0
        self.traces.add(trace)

    def note(self, kind: str, detail: str, token: str) -> None:
        if kind in self.found:
            self.found[kind].times += 1
        else:
            self.found[kind] = Found(kind, detail, token, self.orders)


def table(tallies: Sequence[Tally]) -> str:
    """A line for each scenario, then what was found."""
    lines = [f"{'scenario':52} {'stops':>16} {'orders':>8} {'differing':>9} {'s':>7} {'orders/s':>8}  findings"]
    for tally in tallies:
        rate = tally.orders / tally.seconds if tally.seconds else 0.0
        stops = "+".join(map(str, tally.places.stops)) if tally.places else ""
        found = sum(one.times for one in tally.found.values())
        lines.append(
            f"{tally.name:52} {stops:>16} {tally.orders:8,} {len(tally.traces):9,} {tally.seconds:7.1f} {rate:8.1f}"
            f"  {found or ''}"
        )
    orders, seconds = sum(tally.orders for tally in tallies), sum(tally.seconds for tally in tallies)
    differing = sum(len(tally.traces) for tally in tallies)
    rate = orders / max(seconds, 1e-9)
    lines.append(f"{'all':52} {'':>16} {orders:8,} {differing:9,} {seconds:7.1f} {rate:8.1f}")
    lines += [describe(tally, one) for tally in tallies for one in tally.found.values()]
    return "\n".join(lines)


def describe(tally: Tally, one: Found) -> str:
    return (
        f"{tally.name}: {one.kind} ({one.times} times; first after {one.after:,} orders): {one.detail}\n"
        f"    python -m tests.simulation --repeat '{one.token}'"
    )
