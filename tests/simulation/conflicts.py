"""At which stops a switch can matter: before operations whose outcome depends on what others do.

An order in which a command stands still before an operation that nobody else's touches is the same as one in which it
stands still before its next one that somebody's does: only the latter is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.simulation.scheduler import NAMES, Step

WRITES = frozenset(
    {
        "write-open",
        "write",
        "rename",
        "remove",
        "mkdir",
        "rmdir",
        "truncate",
        "ftruncate",
        "fallocate",
        "link",
        "fill",
        "compute",
    }
    | {"put", "delete", "copy"}  # in a bucket
)
_LISTS = frozenset({"listdir", "scandir", "list", "list_with_delimiter"})


@dataclass(frozen=True)
class Places:
    """Of each command after how many stops it may stand still, at which it may be killed, and how many it makes."""

    switches: tuple[tuple[int, ...], ...]
    kills: tuple[tuple[int, ...], ...]
    stops: tuple[int, ...]


def find_places(orders: Sequence[Sequence[Step]], is_killable: Sequence[bool]) -> Places:
    """orders: the steps of the commands one after the other, once with each of them as the first."""
    first = [[step for step in steps if step.actor == name] for name, steps in zip(NAMES, orders, strict=False)]
    switches = []
    for name, own in zip(NAMES, first, strict=False):
        others = {step for steps in orders for step in steps if step.actor != name and step.path}
        switches.append(tuple(_mattering(own, others)))
    kills = [
        tuple(number for number, step in enumerate(own, 1) if killable and step.operation in WRITES)
        for own, killable in zip(first, is_killable, strict=True)
    ]
    return Places(tuple(switches), tuple(kills), tuple(map(len, first)))


def _mattering(own: Sequence[Step], others: set[Step]) -> Iterator[int]:
    """After how many stops the next operation is one that somebody's operation touches."""
    known: dict[Step, bool] = {}
    for number, step in enumerate(own):
        if step not in known:
            touches = step.path and any(_conflict(step, other) for other in others)
            known[step] = bool(touches) or step.operation == "compute"
        if known[step]:
            yield number


def _conflict(one: Step, two: Step) -> bool:
    """Whether the order of two operations can make a difference. A lock counts as a write of its file."""
    if not (_writes(one) or _writes(two)):
        return False
    return any(_touch(one, mine, two, theirs) for mine in _paths(one) for theirs in _paths(two))


def _writes(step: Step) -> bool:
    return step.operation in WRITES or step.operation == "flock"


def _paths(step: Step) -> Iterator[str]:
    yield step.path
    if step.target:
        yield step.target


def _touch(one: Step, mine: str, two: Step, theirs: str) -> bool:
    if mine == theirs:
        return True
    return _covers(one, mine, theirs) or _covers(two, theirs, mine)


def _covers(step: Step, path: str, other: str) -> bool:
    """Whether this operation on a folder also concerns what lies in it."""
    if step.operation in ("rename", "delete", "list"):
        return other.startswith(f"{path}/")
    return step.operation in _LISTS and other.rpartition("/")[0] == path
