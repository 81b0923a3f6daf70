"""What tables of text share: CSV, a line of Markdown, a figure with its interval."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """The columns of all rows; empty where a row has none."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def markdown_line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def with_interval(record: Mapping[str, Any], key: str) -> str:
    """A figure, with half of its 95% interval where it has one; empty where it is missing."""
    if record.get(key) is None:
        return ""
    width = record.get(f"{key}_ci95")
    return f"{record[key]:.2f}" + ("" if width is None else f" ± {width:.2f}")
