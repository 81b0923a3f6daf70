"""Tables of `ppa eval --out TABLE.json` of several class splits, drawn together: python birds_table.py TABLE.json …

Each method's mean over all tables, and by how much phi leads it: the mean over class splits, seeds of phi and draws,
with a 95% interval by Student's t over the class splits, which differ most.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import t

FIGURES = ("top1_large", "top1_few", "harmonic_mean", "best_harmonic_mean", "ausuc")


def mean_and_width(values: Sequence[float]) -> tuple[float, float]:
    """The mean and half the width of its 95% interval."""
    mean, n = sum(values) / len(values), len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, n - 1))
    return mean, float(t.ppf(0.975, n - 1)) * spread / math.sqrt(n) if n > 1 else math.nan


def method_of(row: Mapping[str, Any]) -> tuple[int, str]:
    """Its shots and its name, with its share of D_large where that is not all."""
    share = str(row["d_large"])
    return int(row["shots"]), str(row["method"]) + ("" if share == "100%" else f", {share}")


def average(rows: Sequence[dict[str, float]]) -> float:
    return sum(row["ausuc"] for row in rows) / len(rows)


def main(paths: Sequence[str]) -> None:
    found: dict[tuple[int, str], list[list[dict[str, float]]]] = defaultdict(list)  # by shots and method, per split
    for path in paths:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
        for key in sorted({method_of(row) for row in rows}):
            found[key].append([row for row in rows if method_of(row) == key])
    print(f"| method | shots | {' | '.join(FIGURES)} | phi leads by AUSUC |\n|---|--:|{'--:|' * (len(FIGURES) + 1)}")
    for (shots, method), splits in sorted(found.items()):
        mine = [rows for (count, name), rows in found.items() if count == shots and name.startswith("phi")]
        rows = [row for one in splits for row in one]
        figures = [f"{sum(row[name] for row in rows) / len(rows):.1f}" for name in FIGURES]
        is_other = bool(mine) and not method.startswith("phi")
        leads = (
            [average(phis) - average(others) for phis, others in zip(mine[0], splits, strict=True)] if is_other else []
        )
        lead = "{:.1f} ± {:.1f}".format(*mean_and_width(leads)) if leads else ""
        print(f"| {method} | {shots} | {' | '.join(figures)} | {lead} |")


if __name__ == "__main__":
    main(sys.argv[1:])
