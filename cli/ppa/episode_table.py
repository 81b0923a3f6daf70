"""The table of `ppa episodes`: what was measured beside the paper's mini-ImageNet figures."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from predictor.protocol.episodes import EpisodeResult
    from predictor.protocol.tasks import TaskSize

PAPER_NAMES = {"simple": "Ours-Simple", "wrn28-10": "Ours-WRN"}  # backbone -> phi2 on it, as the paper calls it
_WORDS = {1: "one_shot", 5: "five_shot"}  # the columns of the paper's table
Row = dict[str, Any]


def column(size: TaskSize) -> str:
    return _WORDS.get(size.shots, f"{size.shots}_shot")


def table_rows(
    results: Sequence[EpisodeResult], sizes: Sequence[TaskSize], ours: str | None, beside_paper: bool = True
) -> list[Row]:
    """A row per method, in percent, with the paper's figures where it has that method; then the paper's other rows.

    ours: what the paper calls phi2 on this backbone. beside_paper: False where its figures are of other inputs.
    """
    from predictor.protocol.paper import read_table

    paper = {row["method"]: row for row in read_table("miniimagenet")} if beside_paper else {}
    rows: dict[str, Row] = {}
    for result in results:
        row = rows.setdefault(result.method, {"method": result.method, "tasks": len(result.accuracies)})
        row[column(result.size)] = round(100 * result.accuracy, 2)
        row[f"{column(result.size)}_ci95"] = round(100 * result.ci95, 2)
        if result.auroc is not None:
            row[f"{column(result.size)}_auroc"] = round(100 * result.auroc, 2)
        row["seconds"] = round(row.get("seconds", 0.0) + result.seconds, 2)
    known = {name: ours if name == "phi2" and ours else name for name in rows}
    for name, row in rows.items():
        row.update(_figures(paper.get(known[name], {}), sizes))
    missing = [name for name in paper if name not in known.values()]
    return [*rows.values(), *({"method": name, **_figures(paper[name], sizes)} for name in missing)]


def _figures(row: dict[str, str], sizes: Sequence[TaskSize]) -> Row:
    """The paper's are of 5-way tasks."""
    keys = [key for size in sizes if size.way == 5 for key in (column(size), f"{column(size)}_ci95")]
    return {f"paper_{key}": float(row[key]) for key in keys if key in row}


def markdown(rows: Sequence[Row], sizes: Sequence[TaskSize]) -> str:
    columns = [column(size) for size in sizes]
    header = ["method", *(f"{size.shots} shot" for size in sizes), *(f"AUROC, {size.shots} shot" for size in sizes),
              *(f"paper, {size.shots} shot" for size in sizes)]  # fmt: skip
    lines = [
        [row["method"], *(_cell(row, name) for name in columns), *(_auroc(row, name) for name in columns),
         *(_cell(row, f"paper_{name}") for name in columns)]
        for row in rows
    ]  # fmt: skip
    widths = [max(len(line[place]) for line in [header, *lines]) for place in range(len(header))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in [header, rule, *lines]
    )


def _cell(row: Row, name: str) -> str:
    return f"{row[name]:.2f} ± {row[f'{name}_ci95']:.2f}" if name in row else ""


def _auroc(row: Row, name: str) -> str:
    return f"{row[f'{name}_auroc']:.1f}" if f"{name}_auroc" in row else ""


def write_table(path: Path, rows: Sequence[Row], sizes: Sequence[TaskSize]) -> None:
    from actstore.storage.atomic_file import write_atomic

    if path.suffix == ".md":
        text = markdown(rows, sizes) + "\n"
    elif path.suffix == ".json":
        text = json.dumps(rows, indent=2, ensure_ascii=False) + "\n"
    else:
        text = _csv(rows)
    write_atomic(path, text.encode())


def _csv(rows: Sequence[Row]) -> str:
    out = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
