"""What a data set holds that it should not: copies, leaks between splits, suspect labels, outliers, dead features.

detection.py     one pass over the rows: copies byte for byte, rows of zeros, features that never change; which
                 neighbours are nearer than chance has them; which labels neither neighbours nor class means agree with
outcome.py       what was found, as a table and a page of images; which rows two splits share; the file that keeps it
auditing.py      all of it

The nearest rows of every row come from actstore/analysis/neighbours.py. Imports the store, search, analysis and images.
"""

from __future__ import annotations

from actstore.audit.auditing import audit_store
from actstore.audit.outcome import (
    ENDINGS,
    FILE,
    KIND_LABELS,
    Audit,
    Finding,
    kept_audit,
    make_sheet,
    shared_rows,
    write_findings,
)

__all__ = [
    "ENDINGS", "FILE", "KIND_LABELS", "Audit", "Finding", "audit_store", "kept_audit", "make_sheet", "shared_rows",
    "write_findings",
]  # fmt: skip
