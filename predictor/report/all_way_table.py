"""The all-way table: every method beside the paper's figures, as Markdown, CSV or JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    """top-1 / top-5 with the half-width of top-1's 95% interval; the last columns are the paper's, where it has any.

    Where constants were fitted, a letter says on what. Below, differences on the same draws.
    """
    listed = records(rows)
    fitted = list(dict.fromkeys(record["fitted_on"] for record in listed if record["fitted_on"]))
    letters = {text: chr(ord("a") + place % 26) for place, text in enumerate(fitted)}
    has_paper = any(record["paper_top1_large"] is not None for record in listed)
    lines = [
        "| method | D_large | shots | base top-1 / top-5 | novel top-1 / top-5 | harmonic mean | joint | delta | AUSUC "
        "| AUROC |" + " paper base | paper novel |" * has_paper + " constant |" * bool(fitted),
        "|---|--:|--:|---|---|--:|--:|--:|--:|--:|" + "---|---|" * has_paper + "---|" * bool(fitted),
    ]
    for record in listed:
        figures = ["" if record[name] is None else f"{record[name]:.1f}" for name in SHOWN]
        pairs = [_pair(record, f"{paper}top1_{part}", f"{paper}top5_{part}")
                 for paper in ("", "paper_")[: 1 + has_paper] for part in ("large", "few")]  # fmt: skip
        constant = [letters.get(record["fitted_on"], "")] if fitted else []
        named = [record["method"], record["d_large"], record["shots"]]
        lines.append(markdown_line([*named, *pairs[:2], *figures, *pairs[2:], *constant]))
    notes = [f"constant {letter}: fitted on {text}" for text, letter in letters.items()]
    notes += [warning] if warning else []
    return "\n".join([*lines, *_differences_markdown(listed), *(["", *notes] if notes else [])])


def to_text(rows: Sequence[Row], warning: str | None = None) -> str:
    """For a terminal, in 100 columns: top-1 with half of its 95% interval, harmonic mean and AUSUC, in percent."""
    listed = records(rows)
    several = {record["method"] for record in listed if record["d_large"] != "100%"}  # shares of D_large
    has_paper = any(record["paper_top1_large"] is not None for record in listed)
    header = ["method", "shots", "base", "novel", "harmonic", "AUSUC", *(["paper: base, novel"] if has_paper else [])]
    lines = [
        [_named(record, several), record["shots"], _short(record, "top1_large"), _short(record, "top1_few"),
         _figure(record["harmonic_mean"]), _figure(record["ausuc"]),
         *([", ".join(filter(None, (_figure(record[f"paper_top1_{part}"]) for part in ("large", "few"))))] * has_paper)]
        for record in listed
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    text = []
    for name, *figures in [header, *lines]:
        aligned = [cell.rjust(width) for cell, width in zip(figures, widths[1:], strict=True)]
        text.append("  ".join([name.ljust(widths[0]), *aligned]).rstrip())
    fitted = dict.fromkeys(record["fitted_on"] for record in listed if record["fitted_on"])
    notes = [
        "top-1 in percent, ± 95%; --wide prints all figures",
        *(f"calibrated: fitted on {text}" for text in fitted),
    ]
    return "\n".join([*text, "", *notes, *([warning] if warning else [])])


def _named(record: Mapping[str, Any], several: Collection[str]) -> str:
    return f"{record['method']}, {record['d_large']}" if record["method"] in several else record["method"]


def _short(record: Mapping[str, Any], name: str) -> str:
    interval = record[f"{name}_ci95"]
    return _figure(record[name]) + ("" if record[name] is None or interval is None else f" ±{interval:.1f}")


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


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
