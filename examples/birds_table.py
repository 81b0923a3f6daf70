"""Tables of `ppa eval --out TABLE.json` of several class splits, drawn together.

python birds_table.py TABLE.json … [--csv FILE]

Each method's mean over all tables, and by how much phi leads it: the mean over class splits, seeds of phi and draws,
with a 95% interval by Student's t over the class splits, which differ most.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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


def records(paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    found: dict[tuple[int, str], list[list[dict[str, float]]]] = defaultdict(list)  # by shots and method, per split
    for path in paths:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
        for key in sorted({method_of(row) for row in rows}):
            found[key].append([row for row in rows if method_of(row) == key])
    for (shots, method), splits in sorted(found.items()):
        mine = [rows for (count, name), rows in found.items() if count == shots and name.startswith("phi")]
        rows = [row for one in splits for row in one]
        record = {"method": method, "shots": shots, "splits": len(splits)}
        record |= {name: round(sum(row[name] for row in rows) / len(rows), 2) for name in FIGURES}
        if mine and not method.startswith("phi"):
            leads = [average(phis) - average(others) for phis, others in zip(mine[0], splits, strict=True)]
            lead, width = mean_and_width(leads)
            record["phi_leads_by_ausuc"] = round(lead, 2)
            if not math.isnan(width):  # of a single split
                record["phi_leads_ci95"] = round(width, 2)
        yield record


def main(paths: Sequence[str], csv_file: str | None = None) -> None:
    lines = list(records(paths))
    print(f"| method | shots | {' | '.join(FIGURES)} | phi leads by AUSUC |\n|---|--:|{'--:|' * (len(FIGURES) + 1)}")
    for line in lines:
        parts = [f"{line[name]:.1f}" for name in ("phi_leads_by_ausuc", "phi_leads_ci95") if name in line]
        figures = " | ".join(f"{line[name]:.1f}" for name in FIGURES)
        print(f"| {line['method']} | {line['shots']} | {figures} | {' ± '.join(parts)} |")
    if csv_file is not None:
        with Path(csv_file).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(
                file, list(dict.fromkeys(key for line in lines for key in line)), lineterminator="\n"
            )
            writer.writeheader()
            writer.writerows(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--csv", help="also write the figures here")
    given = parser.parse_args()
    main(given.tables, given.csv)
