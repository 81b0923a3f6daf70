"""One command in a process that will be killed, and a log of how far it came: see soak.py.

Lines of the log: "S" when it starts, "R" with the row or step at which it goes on, "A" with how many are done, each
with the time (CLOCK_MONOTONIC, the same for all processes).
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# imported once, in the process from which every child is forked
PRELOADED = [
    "tests.bench.soak_child",
    "cli.actstore",
    "cli.ppa",
    "cli.ppa.train",
    "actstore.extraction.build",
    "actstore.tables.importing",
    "actstore.images.opening",
    "actstore.search.bounded",
    "actstore.search.indexing",
    "predictor.training.phi",
    "faiss",
    "zarr",
    "obstore",
    "actstore.statistics",
    "actstore.tables.row_source",
    "torch._dynamo",
    "matplotlib.pyplot",
    "tqdm",
]


@dataclass(frozen=True)
class Errand:
    """tool: actstore or ppa. interval: seconds after which rows are to be durable. pace: seconds that a block takes."""

    tool: str
    arguments: Sequence[str]
    log: Path
    interval: float
    pace: float


def run(errand: Errand) -> None:
    """The command, as from a shell."""
    said = os.open(errand.log.with_suffix(".said"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(said, stream)
    descriptor = os.open(errand.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(kind: str, done: int = 0) -> None:
        os.write(descriptor, f"{kind} {time.monotonic():.6f} {done}\n".encode())

    _watch_writers(errand, note)
    _watch_trainings(errand, note)
    main = importlib.import_module(f"cli.{errand.tool}").main
    note("S")
    main([str(one) for one in errand.arguments])


def _watch_writers(errand: Errand, note: Any) -> None:
    from actstore.tables import row_source as rows
    from actstore.writing import split_writer as keeping
    from actstore.writing.split_writer import SplitWriter

    keeping.SECONDS, rows.BLOCK_BYTES = errand.interval, 4096
    begin, append = SplitWriter.__init__, SplitWriter.append

    def watched_begin(self: Any, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        note("R", self.position)

    def watched_append(self: Any, *arguments: Any, **named: Any) -> None:
        append(self, *arguments, **named)
        note("A", self.position)
        time.sleep(errand.pace)

    SplitWriter.__init__, SplitWriter.append = watched_begin, watched_append  # type: ignore[method-assign]


def _watch_trainings(errand: Errand, note: Any) -> None:
    from predictor.training.loop import _Run

    learn = _Run.learn

    def watched(run: Any, options: Any, report: Any, interruption: Any) -> None:
        note("R", run.step)

        def reported(done: int, *more: Any) -> None:
            note("A", done)
            time.sleep(errand.pace)
            report(done, *more)

        learn(run, options, reported, interruption)

    _Run.learn = watched
