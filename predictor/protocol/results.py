"""What measurements give back: records, warnings, and tables of them as text, Markdown, CSV, JSON and HTML; and the
paper's figures, as data.

Which method a row is of is told by its key, whatever the method is called in print.
"""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actstore.errors import InvalidInputError
from actstore.storage.atomic_file import as_utf8, write_atomic

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

LABELS = {"phi1": "phi1", "phi2": "phi2", "phi2star": "phi2*"}  # as the paper's table names them
CALIBRATED = "calibrated"
BY_SHARE = ("nn", "triplet", "triplet-images")  # measured with several shares of D_large


@dataclass(frozen=True)
class MethodKey:
    """key: as `ppa eval --methods` and `ppa train --phi` name it. variant: "" for phi as it is, "calibrated", or what
    else was chosen for it. share: of D_large."""

    key: str
    variant: str = ""
    share: str = "100%"

    @property
    def is_phi(self) -> bool:
        return self.key in LABELS

    @property
    def is_calibrated(self) -> bool:
        return self.variant == CALIBRATED

    @property
    def is_by_share(self) -> bool:
        return self.key in BY_SHARE


def key_of(row: Mapping[str, Any]) -> MethodKey:
    """Of a row of the all-way table."""
    return MethodKey(row["key"], row["variant"], row["d_large"])


Record = Mapping[str, Any]
ENOUGH_DRAWS = 5  # for an interval to be of use
FORMATS = (".md", ".csv", ".json", ".html", ".txt")


@dataclass(frozen=True)
class Table:
    """Lines of cells as they are shown. named: how many columns from the left hold words; figures are to the right."""

    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    named: int = 1
    title: str = ""

    def to_text(self) -> str:
        """For a terminal: columns of equal width."""
        widths = [max(map(len, column)) for column in zip(self.header, *self.lines, strict=True)]
        text = [self.title] if self.title else []
        for line in (self.header, *self.lines):
            cells = [
                cell.ljust(width) if place < self.named else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            text.append("  ".join(cells).rstrip())
        return "\n".join(text)

    def to_markdown(self) -> str:
        rule = ["---" if place < self.named else "--:" for place in range(len(self.header))]
        lines = [f"| {' | '.join(line)} |" for line in (self.header, rule, *self.lines)]
        return "\n".join([*([self.title, ""] if self.title else []), *lines])

    def to_html(self) -> str:
        heads = "".join(f"<th>{escape(cell)}</th>" for cell in self.header)
        lines = ["".join(f"<td>{escape(cell)}</td>" for cell in line) for line in self.lines]
        title = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table>{title}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


class Results(ABC):
    """What a measurement gives back: figures, and what a reader must know of them; it prints as a table.

    Args:
        records: a dictionary for each row of the table.
        warnings: sentences that belong to the figures.

    Attributes:
        records: the same, each with the warnings; `results[0]` is the first, and a loop goes over all.
        warnings: the same, each once.

    Examples:
        >>> results = predictor.evaluate(phi, store, split, shots=1, draws=2)
        >>> results.save("table.csv")
        >>> len(results.to_pandas()) == len(results)
        True
    """

    def __init__(self, records: Sequence[Record], warnings: Sequence[str] = ()) -> None:
        self.warnings = list(dict.fromkeys(warnings))
        self.records = [dict(record) for record in records]
        for record in self.records if self.warnings else ():
            record["warning"] = "\n".join(self.warnings)

    @abstractmethod
    def tables(self, wide: bool = False) -> list[Table]:
        """Make the tables that are shown.

        Args:
            wide: show all figures, not the essential ones alone.
        """

    def notes(self, wide: bool = False) -> list[str]:
        """Explain the figures in sentences, which stand below the tables.

        Args:
            wide: of all figures, not of the essential ones alone.
        """
        return []

    def plot(self) -> Figure:
        """Draw the figures.

        Returns:
            A figure of matplotlib.

        Raises:
            InvalidInputError: there is no picture of this measurement.
        """
        raise InvalidInputError(f"{type(self).__name__} has no picture; use to_pandas() and draw what you need")

    def to_text(self, wide: bool = False) -> str:
        """Give the tables, notes and warnings as text.

        Args:
            wide: show all figures, not the essential ones alone.
        """
        return self._joined([table.to_text() for table in self.tables(wide)], wide)

    def to_markdown(self, wide: bool = True) -> str:
        """Give the tables, notes and warnings as Markdown.

        Args:
            wide: show all figures, not the essential ones alone.
        """
        return self._joined([table.to_markdown() for table in self.tables(wide)], wide)

    def _joined(self, tables: Sequence[str], wide: bool) -> str:
        return "\n\n".join([*tables, *filter(None, ["\n".join([*self.notes(wide), *self.warnings])])])

    def to_csv(self) -> str:
        """Give the records as CSV; a cell is empty where a record has no such figure."""
        return to_csv(self.records)

    def to_json(self) -> str:
        """Give the records as JSON."""
        return json.dumps(self.records, indent=1) + "\n"

    def to_html(self, wide: bool = False) -> str:
        """Give the tables, notes and warnings as HTML.

        Args:
            wide: show all figures, not the essential ones alone.
        """
        said = [f"<p>{escape(note)}</p>" for note in (*self.notes(wide), *self.warnings)]
        return "".join([*(table.to_html() for table in self.tables(wide)), *said])

    def to_pandas(self) -> pandas.DataFrame:
        """Make a data frame with a row for each record; its `attrs` hold the warnings."""
        import pandas

        table = pandas.DataFrame(self.records).drop(columns="warning", errors="ignore")
        table.attrs["warnings"] = self.warnings
        return table

    def save(self, path: str | Path) -> None:
        """Write the results to a file.

        Args:
            path: a file that ends in .md, .csv, .json, .html or .txt.
        """
        makers = (self.to_markdown, self.to_csv, self.to_json, self.to_html, self.to_text)
        makes = dict(zip(FORMATS, makers, strict=True))
        ending = Path(path).suffix
        if ending not in makes:
            raise InvalidInputError(f"results are written as {', '.join(FORMATS)}, got {path}")
        write_atomic(Path(path), as_utf8(makes[ending]().rstrip("\n") + "\n"))

    def save_plot(self, path: str | Path) -> None:
        """Draw the figures into a file.

        Args:
            path: a file that ends in .png, .svg or .pdf.
        """
        from predictor.figures.style import save

        save(self.plot(), Path(path))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self.records[place]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return self.to_html()


def displayed(figure: Figure) -> Figure:
    """The same figure, which a notebook shows by itself: it was drawn without pyplot, which would have told it how."""

    def png() -> bytes:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        return buffer.getvalue()

    figure._repr_png_ = png  # type: ignore[attr-defined]
    return figure


def to_csv(records: Sequence[Record]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in records for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def with_interval(record: Record, key: str) -> str:
    """A figure, with half of its 95% interval where it has one; empty where it is missing."""
    if record.get(key) is None:
        return ""
    width = record.get(f"{key}_ci95")
    return f"{record[key]:.2f}" + ("" if width is None else f" ± {width:.2f}")


def shown(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"


@cache
def read_table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of paper/NAME.csv: tables (all-way accuracies), efficiency, miniimagenet or sessions."""
    text = (files("predictor.protocol") / "paper" / f"{name}.csv").read_text("utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def all_way_figures(method: str, share: str, shots: str) -> dict[str, float] | None:
    """top1_large, top5_large, top1_few and top5_few in percent; None where the paper has no such row."""
    for row in read_table("tables"):
        if (row["method"], row["d_large"], row["shots"]) == (method, share, shots):
            return {column: float(row[column]) for column in row if column.startswith("top")}
    return None
