"""The table of N-way K-shot tasks: what was measured beside the paper's mini-ImageNet figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from predictor.protocol.episodes import EpisodeResult
from predictor.protocol.paper import read_table
from predictor.protocol.results import Results, Table, with_interval
from predictor.protocol.tasks import TaskSize

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
        row["tasks"], row["way"] = len(result.accuracies), result.size.way
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


class EpisodeResults(Results):
    """Of `predictor.run_episodes`: mean accuracy over tasks, in percent, with its 95% confidence interval."""

    def tables(self, wide: bool = False) -> list[Table]:
        columns = self._columns()
        names = [_words(column) for column in columns]
        header = ["method", *names, *(f"AUROC, {name}" for name in names), *(f"paper, {name}" for name in names)]
        lines = [
            [row["method"], *(with_interval(row, name) for name in columns),
             *(f"{row[f'{name}_auroc']:.1f}" if f"{name}_auroc" in row else "" for name in columns),
             *(with_interval(row, f"paper_{name}") for name in columns)]
            for row in self.records
        ]  # fmt: skip
        return [Table(header, lines)]

    def _columns(self) -> list[str]:
        """In the order of the shots, as rows were made."""
        ours = dict.fromkeys(key for row in self.records for key in row if key.endswith("_shot"))
        return [key for key in ours if not key.startswith("paper_")]

    def notes(self, wide: bool = False) -> list[str]:
        tasks = max((row.get("tasks", 0) for row in self.records), default=0)
        way = next((row["way"] for row in self.records if "way" in row), 0)
        return [f"{way}-way accuracy in %, ± 95% confidence interval over {tasks:,} tasks"]


def _words(column: str) -> str:
    """one_shot -> 1 shot, 3_shot -> 3 shot."""
    numbers = {word: number for number, word in _WORDS.items()}
    return f"{numbers.get(column, column.removesuffix('_shot'))} shot"
