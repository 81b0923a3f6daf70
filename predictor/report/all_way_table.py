"""The all-way table: every method beside the paper's figures, as Markdown, CSV or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from predictor.protocol.evaluation import Row, half_width
from predictor.protocol.method_key import CALIBRATED
from predictor.protocol.paper import all_way_figures
from predictor.report import text_tables
from predictor.report.text_tables import markdown_line, with_interval

PERCENT = ("top1_large", "top5_large", "top1_few", "top5_few")
SHOWN = ("harmonic_mean", "joint", "delta", "ausuc", "auroc")
FURTHER = (*SHOWN, "best_harmonic_mean")  # the last one in CSV and JSON alone
OURS = "phi2"
PAIRED = ("top1_large", "top1_few", "harmonic_mean", "ausuc")  # of which the difference from phi2 is told


def records(rows: Sequence[Row], warning: str | None = None) -> list[dict[str, Any]]:
    """One object per row: the columns of the paper's table, our further metrics, intervals and the paper's figures."""
    listed = []
    references = {shots: reference_of(rows, shots) for shots in {row.shots for row in rows}}
    for row in rows:
        method, mean, interval = row.method, row.mean, row.interval
        paper_row = method.paper_name or method.name, method.paper_share or method.share, row.shots
        paper = (all_way_figures(*paper_row) if row.is_beside_paper else None) or {}
        record: dict[str, Any] = {
            "method": method.name,
            "d_large": method.share,
            "shots": row.shots,
            "finetuned": "Y" if method.finetuned else "N",
            **{name: _rounded(mean[name]) for name in (*PERCENT, *FURTHER)},
            **{f"{name}_ci95": _rounded(interval[name]) for name in (*PERCENT, *FURTHER)},
            "draws": row.draws,
            "key": row.key,
            "variant": method.variant,
            "fitted_on": method.fitted_on if method.variant == CALIBRATED else "",
            **differences(row, references[row.shots]),
            **{f"paper_{name}": paper.get(name) for name in PERCENT},
        }
        if warning:
            record["warning"] = warning
        listed.append(record)
    return listed


def to_markdown(rows: Sequence[Row], warning: str | None = None) -> str:
    """top-1 / top-5 with the half-width of top-1's 95% interval; the last columns are the paper's, on ImageNet.

    Where constants were fitted, a letter says on what. Below, differences on the same draws.
    """
    listed = records(rows)
    fitted = list(dict.fromkeys(record["fitted_on"] for record in listed if record["fitted_on"]))
    letters = {text: chr(ord("a") + place % 26) for place, text in enumerate(fitted)}
    lines = [
        "| method | D_large | shots | base top-1 / top-5 | novel top-1 / top-5 | harmonic mean | joint | delta | AUSUC "
        "| AUROC | paper base | paper novel |" + (" constant |" if fitted else ""),
        "|---|--:|--:|---|---|--:|--:|--:|--:|--:|---|---|" + ("---|" if fitted else ""),
    ]
    for record in listed:
        figures = ["" if record[name] is None else f"{record[name]:.1f}" for name in SHOWN]
        pairs = [_pair(record, f"{paper}top1_{part}", f"{paper}top5_{part}")
                 for paper in ("", "paper_") for part in ("large", "few")]  # fmt: skip
        constant = [letters.get(record["fitted_on"], "")] if fitted else []
        named = [record["method"], record["d_large"], record["shots"]]
        lines.append(markdown_line([*named, *pairs[:2], *figures, *pairs[2:], *constant]))
    notes = [f"constant {letter}: fitted on {text}" for text, letter in letters.items()]
    notes += [warning] if warning else []
    return "\n".join([*lines, *_differences_markdown(listed), *(["", *notes] if notes else [])])


def to_csv(rows: Sequence[Row], warning: str | None = None) -> str:
    return text_tables.to_csv(records(rows, warning))


def reference_of(rows: Sequence[Row], shots: str) -> Row | None:
    """phi2 with its constant, where it is in the table, else as it is."""
    ours = [row for row in rows if row.key == OURS and row.shots == shots and row.method.variant in (CALIBRATED, "")]
    return next((row for row in ours if row.method.variant == CALIBRATED), ours[0] if ours else None)


def differences(row: Row, reference: Row | None) -> dict[str, Any]:
    """How far a method is from phi2 on the very same draws. A draw of easy examples is easy for all methods: the
    difference varies less than either does.

    Columns of a record: `against` whom, and of PAIRED the mean difference with half of its 95% interval (percent).
    None where there is nothing to pair: the reference itself, a single draw, another number of draws.
    """
    columns: dict[str, Any] = {"against": None}
    columns |= {f"{name}_difference{end}": None for name in PAIRED for end in ("", "_ci95")}
    if reference is None or row is reference or row.draws != reference.draws or row.draws < 2:
        return columns
    columns["against"] = reference.method.name
    for name in PAIRED:
        gaps = np.subtract(row.values[name], reference.values[name])
        columns[f"{name}_difference"] = round(float(gaps.mean()), 2)
        columns[f"{name}_difference_ci95"] = round(half_width(gaps.tolist()), 2)
    return columns


def _differences_markdown(records: Sequence[Mapping[str, Any]]) -> list[str]:
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
        gaps = [f"{record[f'{name}_difference']:+.2f} ± {record[f'{name}_difference_ci95']:.2f}" for name in PAIRED]
        lines.append(markdown_line([record["method"], record["d_large"], record["shots"], *gaps]))
    return lines


def _pair(record: Mapping[str, Any], top1: str, top5: str) -> str:
    return "" if record[top1] is None else f"{with_interval(record, top1)} / {record[top5]:.2f}"


def _rounded(value: float) -> float | None:
    return None if value != value else round(value, 2)  # NaN: a single draw has no interval
