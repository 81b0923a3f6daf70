"""What a data set holds that it should not: copies, leaks between splits, suspect labels, outliers, dead features.

detection.py     one pass over the rows: copies byte for byte, rows of zeros, features that never change; which
                 neighbours are nearer than chance has them; which labels neither neighbours nor class means agree with
outcome.py       what was found, as a table, which rows two splits share, and the file beside the store that keeps it
auditing.py      all of it; sheet.py shows the images

The nearest rows of every row come from actstore/analysis/neighbours.py. Imports the store, search, analysis and images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily

if TYPE_CHECKING:
    from actstore.audit.auditing import audit_store
    from actstore.audit.outcome import (
        ENDINGS,
        FILE,
        KIND_LABELS,
        Audit,
        Finding,
        kept_audit,
        shared_rows,
        write_findings,
    )
    from actstore.audit.sheet import make_sheet

__all__ = [
    "ENDINGS", "FILE", "KIND_LABELS", "Audit", "Finding", "audit_store", "kept_audit", "make_sheet", "shared_rows",
    "write_findings",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__)
