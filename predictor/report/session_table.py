"""The tables of sessions and of N-way K-shot tasks: ours, beside published figures and the network each has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from predictor.protocol.episodes import EpisodeResult, TaskSize
from predictor.protocol.evaluation import half_width
from predictor.protocol.results import (
    ENOUGH_DRAWS,
    Results,
    Table,
    displayed,
    key_of,
    read_table,
    shown,
    to_csv,
    with_interval,
)
from predictor.protocol.sessions import ACCURACY, BASE, HARMONIC, MEASURES, NOVEL, SessionResult, mean_over_draws

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

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
    others = [{"method": name, **figures} for name in missing if (figures := _figures(paper[name], sizes))]
    return [*rows.values(), *others]


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
        in_paper = [name for name in columns if any(f"paper_{name}" in row for row in self.records)]
        header = ["method", *map(_words, columns), *(f"AUROC, {_words(name)}" for name in columns),
                  *(f"paper, {_words(name)}" for name in in_paper)]  # fmt: skip
        lines = [
            [row["method"], *(with_interval(row, name) for name in columns),
             *(f"{row[f'{name}_auroc']:.1f}" if f"{name}_auroc" in row else "" for name in columns),
             *(with_interval(row, f"paper_{name}") for name in in_paper)]
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
        said = [f"{way}-way accuracy in %, ± 95% confidence interval over {tasks:,} tasks"]
        ours = [row for row in self.records if "tasks" in row]
        if whole := [row["method"] for row in ours if not any(key.endswith("_auroc") for key in row)]:
            said.append(f"no AUROC of {', '.join(whole)}: it is measured where scores_categories_apart is True")
        return said


def _words(column: str) -> str:
    """one_shot -> 1 shot, 3_shot -> 3 shot."""
    numbers = {word: number for number, word in _WORDS.items()}
    return f"{numbers.get(column, column.removesuffix('_shot'))} shot"


# base categories, new ones of a session, examples of each, sessions with the base's -> published rows, and the class by
# which the data set is known where others have as many
USUAL = {(60, 5, 5, 9): ("sessions", ""), (100, 10, 5, 11): ("sessions-birds", "Laysan_Albatross")}


def session_rows(results: Sequence[SessionResult], way: int, shots: int, backbone: str) -> list[Row]:
    """An object per method with a list per measure; then the published rows, where this is their protocol."""
    rows: list[Row] = []
    for result in results:
        row: Row = {
            "method": result.method.name, "d_large": result.method.share, "backbone": backbone, "way": way,
            "shots": shots, "draws": len(result.figures[ACCURACY]), "categories": list(result.categories),
            **{name: mean_over_draws(result.figures[name]) for name in MEASURES},
            "key": result.method.key, "variant": result.method.variant,
            "fitted_on": getattr(result.method, "fitted_on", ""),
        }  # fmt: skip
        for name in (ACCURACY, HARMONIC):
            for what, values in (("average", result.averages(name)), ("last", result.last(name))):
                row[f"{what}_{name}"] = round(float(values.mean()), 2)
                width = half_width(values.tolist())
                row[f"{what}_{name}_ci95"] = None if width != width else round(width, 2)
        rows.append(row)
    usual = dict.fromkeys(name for result in results if (name := _usual(result, way, shots)))
    return rows + [row for name in usual for row in published(name)]


def published(name: str = "sessions") -> list[Row]:
    """Last-session rows of others, on mini-ImageNet or on birds (sessions-birds), each with its backbone and where the
    figures were found."""
    numbers = {"first": "first_accuracy", "average": "average_accuracy", "last": "last_accuracy"}
    return [
        {
            "method": row["method"], "backbone": row["backbone"], "published": True,
            **{name: float(row[key]) for key, name in numbers.items() if row[key]}, "source": row["source"],
        }
        for row in read_table(name)
    ]  # fmt: skip


class SessionResults(Results):
    """Of `predictor.run_sessions`: accuracy after each session, and published methods where the protocol is theirs."""

    def tables(self, wide: bool = False) -> list[Table]:
        """Accuracy per session, and below it base, novel and harmonic mean of every method; then the published rows."""
        ours, others = self._ours, [row for row in self.records if "published" in row]
        known = max((row["categories"] for row in ours), key=len)
        lines = []
        for row in ours:
            for name, words in ((ACCURACY, "accuracy"), (BASE, "base"), (NOVEL, "novel"), (HARMONIC, "harmonic mean")):
                ends = [with_interval(row, f"{what}_{name}") for what in ("average", "last")]
                figures = [shown(value, 2) for value in row[name]]
                lines.append([_named(row) if name == ACCURACY else "", words, *figures, *ends])
        lines += [
            [row["method"], f"accuracy, {row['backbone']}", shown(row.get("first_accuracy"), 2),
             *[""] * (len(known) - 1), shown(row.get("average_accuracy"), 2), shown(row["last_accuracy"], 2)]
            for row in others
        ]  # fmt: skip
        return [Table(["method", "what (%)", *map(str, known), "average", "last"], lines, named=2)]

    @property
    def _ours(self) -> list[Row]:
        return [row for row in self.records if "published" not in row]

    def notes(self, wide: bool = False) -> list[str]:
        first = self._ours[0]
        notes = [
            f"columns: categories known; {first['way']} new ones a session from {first['shots']} examples, no training "
            f"in a session, {first['draws']} draws; network: {first['backbone']}"
        ]
        fitted = dict.fromkeys(row["fitted_on"] for row in self._ours if row["fitted_on"])
        notes += [f"constants fitted on {text}" for text in fitted]
        if fitted:
            notes.append(
                "they are fitted for the harmonic mean; accuracy over all images, most of them of the base, may fall"
            )
        if 1 < first["draws"] < ENOUGH_DRAWS:
            notes.append(f"intervals of {first['draws']} draws are themselves uncertain; take {ENOUGH_DRAWS} or more")
        if others := [row for row in self.records if "published" in row]:
            notes.append("published: " + "; ".join(f"{row['method']}: {row['source']}" for row in others))
        return notes

    def to_csv(self) -> str:
        """A line per method and session; published rows have none."""
        return to_csv(self._by_session(()))

    def to_pandas(self) -> pandas.DataFrame:
        """Make a data frame with a row for each method and session; published methods have none."""
        import pandas

        table = pandas.DataFrame(self._by_session(("key", "variant", "d_large")))
        table.attrs["warnings"] = self.warnings
        return table

    def _by_session(self, more: Sequence[str]) -> list[Row]:
        return [
            {"method": row["method"], **{name: row[name] for name in more}, "session": session, "categories": count}
            | {name: row[name][session] for name in MEASURES}
            for row in self.records
            for session, count in enumerate(row.get("categories", ()))
        ]

    def plot(self) -> Figure:
        """Accuracy and harmonic mean as categories are added."""
        from predictor.figures.style import draw_sessions

        return displayed(draw_sessions(self.records))


def _named(row: Mapping[str, Any]) -> str:
    """With the share of D_large where a method is measured with several."""
    return f"{row['method']}, {row['d_large']} of D_large" if key_of(row).is_by_share else str(row["method"])


def _usual(result: SessionResult, way: int, shots: int) -> str:
    """The table of published rows that stand beside this one; empty where there is none."""
    name, known_by = USUAL.get((result.categories[0], way, shots, len(result.categories)), ("", ""))
    base = getattr(getattr(result.method, "base", None), "names", ())
    return name if not known_by or any(one.endswith(known_by) for one in base) else ""
