"""The report's tables, each beside the paper's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from predictor.protocol.method_key import key_of
from predictor.protocol.paper import read_table
from predictor.protocol.results import with_interval
from predictor.report.html import Cell, table

Record = Mapping[str, Any]
ALL_WAY = ("method", "D_large", "shots", "base top-1", "base top-5", "novel top-1", "novel top-5", "harmonic mean",
           "joint", "delta", "AUSUC", "AUROC", "paper base", "paper novel")  # fmt: skip


def all_way_table(records: Sequence[Record]) -> str:
    rows: list[list[Cell]] = []
    marks = []
    for row in records:
        rows.append([
            row["method"], _percent(row["d_large"]), _shots(row["shots"]), _with_interval(row, "top1_large"),
            row["top5_large"], _with_interval(row, "top1_few"), row["top5_few"], _with_interval(row, "harmonic_mean"),
            row["joint"], row["delta"], row["ausuc"], row.get("auroc"),
            row.get("paper_top1_large"), row.get("paper_top1_few"),
        ])  # fmt: skip
        marks.append({"data-shots": row["shots"], "class": "ours" if key_of(row).is_phi else "other"})
    return table("all-way", ALL_WAY, rows, marks)


def shots_filter(records: Sequence[Record]) -> str:
    """Buttons that show the rows of one number of shots."""
    counts = sorted({row["shots"] for row in records if row["shots"] != "all"}, key=int)
    if len(counts) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" data-show="{count}">{count} shot{"s" * (count != "1")}</button>' for count in counts
    )
    return (
        '<div class="filter" data-table="all-way" role="group" aria-label="number of shots">'
        f'<button type="button" data-show="" aria-pressed="true">all</button>{buttons}</div>'
    )


def episode_table(rows: Sequence[Record]) -> str:
    """N-way tasks; the paper's rows that were not run here are left out but for its own method."""
    columns = [key for key in ("one_shot", "five_shot") if any(key in row for row in rows)]
    more = sorted({key for row in rows for key in row if key.endswith("_shot") and not key.startswith("paper_")})
    columns += [key for key in more if key not in columns]
    words = {"one_shot": "1 shot", "five_shot": "5 shots"}
    header = ["method", *(words.get(key, key.replace("_shot", " shots")) for key in columns),
              *(f"paper, {words.get(key, key)}" for key in columns if key in words)]  # fmt: skip
    cells = [
        [row["method"], *(_with_interval(row, key) for key in columns),
         *(_with_interval(row, f"paper_{key}") for key in columns if key in words)]
        for row in rows
    ]  # fmt: skip
    return table("episodes", header, cells)


def inference_table(results: Sequence[Record]) -> str:
    header = ["what", "value", "unit", "beside", "its value", "ratio"]
    rows = [
        [row["name"], _short(row.get("value")), row["unit"], row.get("peer"), _short(row.get("peer_value")),
         _short(row.get("ratio"))]
        for row in results
    ]  # fmt: skip
    return table("inference", header, rows)


def paper_efficiency() -> str:
    rows = [[row["what"], _short(float(row["value"])), row["unit"], row["where"]] for row in read_table("efficiency")]
    return table("paper-efficiency", ["the paper's figures", "value", "unit", "where"], rows)


def _percent(text: str) -> Cell:
    return (text, float(text.rstrip("%")))


def _shots(text: str) -> Cell:
    return (text, float("1e9") if text == "all" else int(text))


def _with_interval(row: Record, key: str) -> Cell:
    return None if row.get(key) is None else (with_interval(row, key), float(row[key]))


def _short(value: float | None) -> Cell:
    return None if value is None else (f"{value:,.4g}", float(value))
