"""What an audit of the store says about support and test images: a warning where some are the same."""

from __future__ import annotations

from collections.abc import Sequence

from actstore import ActivationStore
from actstore.audit import kept_audit, shared_rows
from actstore.errors import DamagedError, InvalidInputError
from actstore.streams.sampling import draw_support
from cli.ppa.recognition import note
from predictor.protocol.evaluation import AllWayTask, rows_of


def named_leaks(store: ActivationStore, task: AllWayTask, shots: Sequence[int], draws: int, seed: int) -> str | None:
    """A line for the table; None without an audit beside the store, or where it found none among the images tested.

    An audit of other rows than the store holds now is named on stderr, and not used.
    """
    train, test = task.train, task.test
    try:
        audit = kept_audit(store, train.name, test.name)
    except (DamagedError, InvalidInputError) as error:
        note(f"leaks are not named: {error}")
        return None
    if audit is None:
        return None
    tested = set(rows_of(test, [*task.base, *task.novel])[0].tolist())
    leaks = {row: twins for row, twins in shared_rows(audit, test.name, train.name).items() if row in tested}
    if not leaks:
        return None
    drawn = _drawn(task, max(shots), draws, seed)
    supported = [row for row, twins in leaks.items() if not drawn.isdisjoint(twins)]
    first, (other, *_) = next(iter(leaks.items()))
    what = "test image is" if len(leaks) == 1 else "test images are"
    return (
        f"WARNING: {len(leaks):,} {what} also in {train.name}, {len(supported):,} of them as support drawn here; "
        f"{test.name} {test.ids[first]} = {train.name} {train.ids[other]}"
        + (f" and {len(leaks) - 1:,} more" if len(leaks) > 1 else "")
        + f"; `actstore audit {store.path}` lists them"
    )


def _drawn(task: AllWayTask, shots: int, draws: int, seed: int) -> set[int]:
    """All rows that are support in one of the draws; fewer shots draw the first of these."""
    index = task.train.class_index
    labels = index.positions(task.novel)
    return {row for draw in range(draws) for row in draw_support(index, labels, shots, seed, draw).ravel().tolist()}
