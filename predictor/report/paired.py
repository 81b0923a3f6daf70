"""How far each method is from phi2 on the very same draws: the interval of the difference, not of two means.

All methods see the same draws, and a draw of easy examples is easy for all of them: the difference varies less than
either does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from predictor.protocol.evaluation import Row, half_width
from predictor.protocol.method_key import CALIBRATED

OURS = "phi2"
PAIRED = ("top1_large", "top1_few", "harmonic_mean", "ausuc")


def reference_of(rows: Sequence[Row], shots: str) -> Row | None:
    """phi2 with its constant, where it is in the table, else as it is."""
    ours = [row for row in rows if row.key == OURS and row.shots == shots and row.variant in (CALIBRATED, "")]
    return next((row for row in ours if row.variant == CALIBRATED), ours[0] if ours else None)


def differences(row: Row, reference: Row | None) -> dict[str, Any]:
    """Columns of a record: `against` whom, and of PAIRED the mean difference with half of its 95% interval (percent).

    None where there is nothing to pair: the reference itself, a single draw, another number of draws.
    """
    found: dict[str, Any] = {"against": None}
    found |= {f"{name}_difference{end}": None for name in PAIRED for end in ("", "_ci95")}
    if reference is None or row is reference or row.draws != reference.draws or row.draws < 2 or not row.values:
        return found
    found["against"] = reference.method
    for name in PAIRED:
        gaps = np.subtract(row.values[name], reference.values[name])
        found[f"{name}_difference"] = round(float(gaps.mean()), 2)
        found[f"{name}_difference_ci95"] = round(half_width(gaps.tolist()), 2)
    return found


def to_markdown(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of a table of the differences; none where nothing is paired."""
    paired = [record for record in records if record["against"] is not None]
    if not paired:
        return []
    lines = [
        "",
        f"Less {paired[0]['against']}, on the same draws (± 95% of the difference, in points):",
        "",
        "| method | D_large | shots | base top-1 | novel top-1 | harmonic mean | AUSUC |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for record in paired:
        cells = [
            f"{record[f'{name}_difference']:+.2f} ± {record[f'{name}_difference_ci95']:.2f}" for name in PAIRED
        ]  # fmt: skip
        lines.append(f"| {record['method']} | {record['d_large']} | {record['shots']} | {' | '.join(cells)} |")
    return lines
