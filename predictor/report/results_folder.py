"""Where commands keep their newest tables by themselves, so that figures and a report find them.

Names alone: the command line says them in `--help`, which waits for no library.
"""

from __future__ import annotations

from pathlib import Path

RESULTS = Path("results")
TABLE, EPISODES, BENCH = "table.json", "episodes.json", "bench-inference.json"
