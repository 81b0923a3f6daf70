"""What a data set holds that it should not: copies, leaks between splits, suspect labels, outliers, dead features.

survey.py        one pass over the rows: copies byte for byte, rows of zeros, features that never change
near_copies.py   which neighbours are nearer than chance has them
labels.py        which labels neither neighbours nor class means agree with
outcome.py       what was found, as a table, and which rows two splits share
auditing.py      all of it; kept.py keeps the outcome beside the store; sheet.py shows the images

The nearest rows of every row come from actstore/analysis/neighbours.py. Imports the store, search, analysis and images.
"""

from __future__ import annotations

from actstore.audit.auditing import audit_store
from actstore.audit.kept import kept_audit
from actstore.audit.outcome import Audit, Finding, shared_rows

__all__ = ["Audit", "Finding", "audit_store", "kept_audit", "shared_rows"]
