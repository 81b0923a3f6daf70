"""The report's tables, each beside the paper's figures, and the map of its categories: plain data for page.html."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from predictor.figures.class_map import ClassMap
from predictor.figures.style import COLOURS, readable
from predictor.protocol.results import key_of, read_table, with_interval

MAP_SIDE, MAP_MARGIN = 1000, 30  # units of the class map
Cell = Any  # str, number, None, or (what is shown, what is sorted by)
Record = Mapping[str, Any]
ALL_WAY = ("method", "D_large", "shots", "base top-1", "base top-5", "novel top-1", "novel top-5", "harmonic mean",
           "joint", "delta", "AUSUC", "AUROC", "paper base", "paper novel")  # fmt: skip


@dataclass(frozen=True)
class ReportTable:
    """Sortable by its header. marks: for each row attributes such as {"data-shots": "1", "class": "ours"}."""

    name: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    marks: Sequence[Mapping[str, str]] = ()

    def lines(self) -> Iterator[tuple[Mapping[str, str], list[tuple[str, float | None]]]]:
        """Of each row its marks and its cells: (text, the number that it is sorted by, if any)."""
        for number, row in enumerate(self.rows):
            yield self.marks[number] if number < len(self.marks) else {}, [_cell(cell) for cell in row]


def _cell(cell: Cell) -> tuple[str, float | None]:
    shown, key = cell if isinstance(cell, tuple) else (cell, cell)
    is_number = isinstance(key, int | float) and not isinstance(key, bool)
    text = "" if shown is None else f"{shown:.2f}" if isinstance(shown, float) else str(shown)
    return text, key if is_number else None


def all_way_table(records: Sequence[Record]) -> ReportTable:
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
    return ReportTable("all-way", ALL_WAY, rows, marks)


def episode_table(rows: Sequence[Record]) -> ReportTable:
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
    return ReportTable("episodes", header, cells)


def inference_table(results: Sequence[Record]) -> ReportTable:
    header = ["what", "value", "unit", "beside", "its value", "ratio"]
    rows = [
        [row["name"], _short(row.get("value")), row["unit"], row.get("peer"), _short(row.get("peer_value")),
         _short(row.get("ratio"))]
        for row in results
    ]  # fmt: skip
    return ReportTable("inference", header, rows)


def paper_efficiency() -> ReportTable:
    rows = [[row["what"], _short(float(row["value"])), row["unit"], row["where"]] for row in read_table("efficiency")]
    return ReportTable("paper-efficiency", ["the paper's figures", "value", "unit", "where"], rows)


def _percent(text: str) -> Cell:
    return (text, float(text.rstrip("%")))


def _shots(text: str) -> Cell:
    return (text, float("1e9") if text == "all" else int(text))


def _with_interval(row: Record, key: str) -> Cell:
    return None if row.get(key) is None else (with_interval(row, key), float(row[key]))


def _short(value: float | None) -> Cell:
    return None if value is None else (f"{value:,.4g}", float(value))


def map_points(shown: ClassMap) -> dict[str, Any]:
    """The class map, which report.js lets a reader move and enlarge: every category a point at its mean's place; names
    come up on hover, and beside the points when enlarged. data: for report.js."""
    places = np.asarray(shown.means)
    low, high = places.min(0), places.max(0)
    scale = (MAP_SIDE - 2 * MAP_MARGIN) / max(float((high - low).max()), 1e-9)
    at = ((places - (low + high) / 2) * scale + MAP_SIDE / 2).tolist()
    group_of = {member: number for number, group in enumerate(shown.groups) for member in group}
    points = [
        {
            "place": place,
            "kind": "novel" if place >= shown.n_base else "base",
            "x": f"{at[place][0]:.1f}",
            "y": f"{MAP_SIDE - at[place][1]:.1f}",
            "colour": COLOURS[group_of[place]] if place in group_of else "",
            "name": readable(shown.names[place]),
        }
        for place in sorted(range(len(at)), key=lambda place: (place in group_of, place))  # groups lie on top
    ]
    data = {"names": [_full(name) for name in shown.names], "base": shown.n_base, "nearest": shown.nearest}
    return {"side": MAP_SIDE, "points": points, "data": data}


def _full(name: str) -> str:
    shown = readable(name)
    return name if shown == name else f"{shown} ({name})"
