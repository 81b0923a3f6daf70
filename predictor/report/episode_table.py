"""The table of `ppa episodes`: what was measured beside the paper's mini-ImageNet figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from predictor.protocol.episodes import EpisodeResult
from predictor.protocol.paper import read_table
from predictor.protocol.tasks import TaskSize
from predictor.report.text_tables import markdown_line, with_interval

PAPER_NAMES = {"simple": "Ours-Simple", "wrn28-10": "Ours-WRN"}  # backbone -> phi2 on it, as the paper calls it
_WORDS = {1: "one_shot", 5: "five_shot"}  # the columns of the paper's table
Row = dict[str, Any]


def episode_rows(
    results: Sequence[EpisodeResult], sizes: Sequence[TaskSize], backbone: str, beside_paper: bool = True
) -> list[Row]:
    """A row per method, in percent, with the paper's figures where it has that method; then the paper's other rows.

    beside_paper: False where the paper's figures are of other inputs.
    """
    paper = {row["method"]: row for row in read_table("miniimagenet")} if beside_paper else {}
    rows: dict[str, Row] = {}
    for result in results:
        row, name = rows.setdefault(result.method, {"method": result.method}), _column(result.size)
        row["tasks"] = len(result.accuracies)
        row[name] = round(100 * result.accuracy, 2)
        row[f"{name}_ci95"] = round(100 * result.ci95, 2)
        if result.auroc is not None:
            row[f"{name}_auroc"] = round(100 * result.auroc, 2)
        row["seconds"] = round(row.get("seconds", 0.0) + result.seconds, 2)
    in_paper = {name: PAPER_NAMES.get(backbone, name) if name == "phi2" else name for name in rows}
    for name, row in rows.items():
        row.update(_figures(paper.get(in_paper[name], {}), sizes))
    missing = [name for name in paper if name not in in_paper.values()]
    return [*rows.values(), *({"method": name, **_figures(paper[name], sizes)} for name in missing)]


def _column(size: TaskSize) -> str:
    return _WORDS.get(size.shots, f"{size.shots}_shot")


def _figures(row: dict[str, str], sizes: Sequence[TaskSize]) -> Row:
    """The paper's are of 5-way tasks."""
    keys = [key for size in sizes if size.way == 5 for key in (_column(size), f"{_column(size)}_ci95")]
    return {f"paper_{key}": float(row[key]) for key in keys if key in row}


def to_markdown(rows: Sequence[Row], sizes: Sequence[TaskSize]) -> str:
    columns, shots = [_column(size) for size in sizes], [f"{size.shots} shot" for size in sizes]
    header = ["method", *shots, *(f"AUROC, {name}" for name in shots), *(f"paper, {name}" for name in shots)]
    lines = [
        [row["method"], *(with_interval(row, name) for name in columns), *(_auroc(row, name) for name in columns),
         *(with_interval(row, f"paper_{name}") for name in columns)]
        for row in rows
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join(
        markdown_line([cell.ljust(width) for cell, width in zip(line, widths, strict=True)])
        for line in [header, rule, *lines]
    )


def _auroc(row: Row, name: str) -> str:
    return f"{row[f'{name}_auroc']:.1f}" if f"{name}_auroc" in row else ""
