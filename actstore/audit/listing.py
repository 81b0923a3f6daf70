"""Findings as a table of another tool: .csv or .parquet, a line for each."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from actstore.audit.outcome import COLUMNS, Audit, record
from actstore.errors import InvalidInputError
from actstore.split import Split
from actstore.storage.atomic_file import write_atomic

ENDINGS = (".csv", ".parquet")


def write_findings(audit: Audit, splits: Mapping[str, Split], path: Path) -> None:
    """All of them, in the order of the audit; what does not apply is empty."""
    if path.suffix not in ENDINGS:
        raise InvalidInputError(f"findings are written to {' or '.join(ENDINGS)}, got {path.name!r}")
    records = [record(finding, splits) for finding in audit.findings]
    if path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        write_atomic(path, text.getvalue().encode())
        return
    import pyarrow
    import pyarrow.parquet

    types = {
        **dict.fromkeys(("leak", "conflict"), pyarrow.bool_()),
        **dict.fromkeys(("row", "other_row"), pyarrow.int64()),
        **dict.fromkeys(("similarity", "score"), pyarrow.float64()),
    }
    schema = pyarrow.schema([(name, types.get(name, pyarrow.string())) for name in COLUMNS])
    buffer = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records, schema=schema), buffer)
    write_atomic(path, buffer.getvalue().to_pybytes())
