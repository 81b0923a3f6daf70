"""The figures of "Few-Shot Image Recognition by Predicting Parameters from Activations" (CVPR 2018), as data."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files


@cache
def read_table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of NAME.csv: tables (all-way accuracies), efficiency or miniimagenet."""
    text = (files(__name__) / f"{name}.csv").read_text("utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def all_way_figures(method: str, share: str, shots: str) -> dict[str, float] | None:
    """top1_large, top5_large, top1_few and top5_few in percent; None where the paper has no such row."""
    for row in read_table("tables"):
        if (row["method"], row["d_large"], row["shots"]) == (method, share, shots):
            return {column: float(row[column]) for column in row if column.startswith("top")}
    return None
