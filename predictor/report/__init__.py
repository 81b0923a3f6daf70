"""What a run has to show: tables, findings in words, all its figures, and one self-contained HTML page.

Imports everything of `predictor`; nothing imports it but the command line, and `evaluate` and the like for its tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from actstore.lazy import lazily

if TYPE_CHECKING:
    from predictor.report.drawing import FIGURE_FILES, draw_run
    from predictor.report.page import write_report
    from predictor.report.run_folder import RunFolder, find_run

__all__ = [
    "BENCH", "EPISODES", "FIGURE_FILES", "RESULTS", "TABLE", "RunFolder", "draw_run", "find_run", "write_report",
]  # fmt: skip

# where commands keep their newest tables by themselves, so that figures and a report find them
RESULTS = Path("results")
TABLE, EPISODES, BENCH = "table.json", "episodes.json", "bench-inference.json"

__getattr__, __dir__ = lazily(__name__)
