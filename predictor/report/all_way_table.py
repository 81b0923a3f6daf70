"""The all-way table: every method beside the paper's figures, as Markdown, CSV or JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from predictor.protocol.evaluation import Row
from predictor.protocol.paper import all_way_figures
from predictor.report import paired

PERCENT = ("top1_large", "top5_large", "top1_few", "top5_few")
FURTHER = ("harmonic_mean", "joint", "delta", "ausuc", "auroc")


def records(rows: Sequence[Row], warning: str | None = None) -> list[dict[str, Any]]:
    """One object per row: the columns of the paper's table, our further metrics, intervals and the paper's figures."""
    found = []
    references = {shots: paired.reference_of(rows, shots) for shots in {row.shots for row in rows}}
    for row in rows:
        paper = all_way_figures(row.paper_name, row.paper_share or row.share, row.shots) or {}
        record: dict[str, Any] = {
            "method": row.method,
            "d_large": row.share,
            "shots": row.shots,
            "finetuned": "Y" if row.finetuned else "N",
            **{name: _rounded(row.mean[name]) for name in (*PERCENT, *FURTHER)},
            **{f"{name}_ci95": _rounded(row.interval[name]) for name in (*PERCENT, *FURTHER)},
            "draws": row.draws,
            "key": row.key,
            "variant": row.variant,
            "fitted_on": row.fitted_on,
            **paired.differences(row, references[row.shots]),
            **{f"paper_{name}": paper.get(name) for name in PERCENT},
        }
        if warning:
            record["warning"] = warning
        found.append(record)
    return found


def to_markdown(rows: Sequence[Row], warning: str | None = None) -> str:
    """top-1 / top-5 with the half-width of top-1's 95% interval; the last columns are the paper's, on ImageNet.

    Where constants were fitted, a letter says on what. Below, differences on the same draws.
    """
    found = records(rows)
    fitted = list(dict.fromkeys(record["fitted_on"] for record in found if record["fitted_on"]))
    letters = {text: chr(ord("a") + place % 26) for place, text in enumerate(fitted)}
    lines = [
        "| method | D_large | shots | base top-1 / top-5 | novel top-1 / top-5 | harmonic mean | joint | delta | AUSUC "
        "| AUROC | paper base | paper novel |" + (" constant |" if fitted else ""),
        "|---|--:|--:|---|---|--:|--:|--:|--:|--:|---|---|" + ("---|" if fitted else ""),
    ]
    lines += [
        f"| {record['method']} | {record['d_large']} | {record['shots']} "
        f"| {_pair(record, 'large')} | {_pair(record, 'few')} "
        + "".join(f"| {_figure(record[name])} " for name in FURTHER)
        + f"| {_paper(record, 'large')} | {_paper(record, 'few')} |"
        + (f" {letters.get(record['fitted_on'], '')} |" if fitted else "")
        for record in found
    ]
    notes = [f"constant {letter}: fitted on {text}" for text, letter in letters.items()]
    notes += [warning] if warning else []
    return "\n".join([*lines, *paired.to_markdown(found), *(["", *notes] if notes else [])])


def to_csv(rows: Sequence[Row], warning: str | None = None) -> str:
    found = records(rows, warning)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]) if found else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


def _pair(record: dict[str, Any], part: str) -> str:
    width = record[f"top1_{part}_ci95"]
    interval = "" if width is None else f" ± {width:.2f}"
    return f"{record[f'top1_{part}']:.2f}{interval} / {record[f'top5_{part}']:.2f}"


def _paper(record: dict[str, Any], part: str) -> str:
    if record[f"paper_top1_{part}"] is None:
        return ""
    return f"{record[f'paper_top1_{part}']:.2f} / {record[f'paper_top5_{part}']:.2f}"


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _rounded(value: float) -> float | None:
    return None if value != value else round(value, 2)  # NaN: a single draw has no interval
