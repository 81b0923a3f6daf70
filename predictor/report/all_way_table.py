"""The all-way table: every method beside the paper's figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.protocol.calibration import NOT_FITTED
from predictor.protocol.evaluation import CalibratedMethod, Row, half_width
from predictor.protocol.results import (
    CALIBRATED,
    ENOUGH_DRAWS,
    Record,
    Results,
    Table,
    all_way_figures,
    displayed,
    key_of,
    shown,
    with_interval,
)

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

PERCENT = ("top1_large", "top5_large", "top1_few", "top5_few")
FURTHER = ("harmonic_mean", "best_harmonic_mean", "joint", "delta", "ausuc", "auroc")
OURS = "phi2"
PAIRED = ("top1_large", "top1_few", "harmonic_mean", "ausuc")  # of which the difference from phi2 is told


def all_way_records(rows: Sequence[Row]) -> list[dict[str, Any]]:
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
            "constant": method.bias if isinstance(method, CalibratedMethod) else getattr(method, "novel_bias", 0.0),
            "fitted_on": method.fitted_on if isinstance(method, CalibratedMethod) else "",
            "calibration_failed": row.failed,
            **differences(row, references[row.shots]),
            **{f"paper_{name}": paper.get(name) for name in PERCENT},
            "curve": [[_rounded(base), _rounded(novel)] for base, novel in row.curve],
        }
        listed.append(record)
    return listed


class AllWayResults(Results):
    """Of `predictor.evaluate`: base and novel accuracy of every method and number of shots, over the same draws."""

    def tables(self, wide: bool = False) -> list[Table]:
        return [self._wide(), *self._differences()] if wide else [self._short()]

    @property
    def _has_paper(self) -> bool:
        return any(record["paper_top1_large"] is not None for record in self.records)

    def _short(self) -> Table:
        """In 100 columns: top-1 with half of its 95% interval, harmonic mean (the best that a constant could give) and
        AUSUC, in percent."""
        several = {key_of(record).key for record in self.records if record["d_large"] != "100%"}  # shares of D_large
        header = ["method", "shots", "base", "novel", "harmonic", "best", "AUSUC"]
        lines = [
            [named(record, key_of(record).key in several), record["shots"], _short(record, "top1_large"),
             _short(record, "top1_few"), *(shown(record[name]) for name in FURTHER[:2]), shown(record["ausuc"]),
             *([", ".join(filter(None, (shown(record[f"paper_top1_{part}"]) for part in ("large", "few"))))]
               * self._has_paper)]
            for record in self.records
        ]  # fmt: skip
        return Table([*header, *["paper: base, novel"] * self._has_paper], lines)

    def _wide(self) -> Table:
        """top-1 / top-5 with the half-width of top-1's 95% interval; the last columns are the paper's, where it has
        any. Where constants were fitted, a letter says on what."""
        letters = self._letters()
        header = [
            "method", "D_large", "shots", "base top-1 / top-5", "novel top-1 / top-5", "harmonic mean",
            "best harmonic mean", "joint", "delta", "AUSUC", "AUROC",
            *["paper base", "paper novel"] * self._has_paper, *["constant"] * bool(letters),
        ]  # fmt: skip
        lines = []
        for record in self.records:
            pairs = [_pair(record, f"{paper}top1_{part}", f"{paper}top5_{part}")
                     for paper in ("", "paper_")[: 1 + self._has_paper] for part in ("large", "few")]  # fmt: skip
            constant = [letters.get(record["fitted_on"], "")] if letters else []
            first = [named(record), record["d_large"], record["shots"]]
            lines.append([*first, *pairs[:2], *(shown(record[name]) for name in FURTHER), *pairs[2:], *constant])
        return Table(header, lines)

    def _letters(self) -> dict[str, str]:
        fitted = dict.fromkeys(record["fitted_on"] for record in self.records if record["fitted_on"])
        return {text: chr(ord("a") + place % 26) for place, text in enumerate(fitted)}

    def _differences(self) -> list[Table]:
        """How far every method is from phi2; none where nothing is paired."""
        paired = [record for record in self.records if record["against"] is not None]
        if not paired:
            return []
        lines = [
            [record["method"], record["d_large"], record["shots"], *(
                f"{record[f'{name}_difference']:+.2f} ± {record[f'{name}_difference_ci95']:.2f}" for name in PAIRED)]
            for record in paired
        ]  # fmt: skip
        title = f"Less {paired[0]['against']}, on the same draws (± 95% of the difference, in points):"
        header = ["method", "D_large", "shots", "base top-1", "novel top-1", "harmonic mean", "AUSUC"]
        return [Table(header, lines, title=title)]

    def notes(self, wide: bool = False) -> list[str]:
        said = []
        if any(record["method"].endswith((", mean", ", max")) for record in self.records):
            said.append("mean, max: a method that combines several examples by their mean, or by the highest score")
        if few := [record["draws"] for record in self.records if 1 < record["draws"] < ENOUGH_DRAWS]:
            said.append(f"intervals of {min(few)} draws are themselves uncertain; take {ENOUGH_DRAWS} or more")
        if wide:
            return [*(f"constant {letter}: fitted on {text}" for text, letter in self._letters().items()), *said]
        what = "top-1 in percent, ± 95%; best: harmonic mean with the best constant; wide=True, --wide: all figures"
        return [what, *(f"{self._fitted_rows(text)}: fitted on {text}" for text in self._letters()), *said]

    def _fitted_rows(self, fitted_on: str) -> str:
        """The rows that this is said of: all that are calibrated, or some of them by name."""
        if len(self._letters()) == 1:
            return "calibrated"
        return "; ".join(dict.fromkeys(one["method"] for one in self.records if one["fitted_on"] == fitted_on))

    def to_pandas(self) -> pandas.DataFrame:
        """Make a data frame with a row for each record, without its curve; shots are numbers, or "all" of a method that
        takes none."""
        table = super().to_pandas().drop(columns="curve", errors="ignore")
        if table.empty:
            return table
        shots = [int(text) if text.isdigit() else text for text in table["shots"]]
        return table.assign(shots=shots)

    def plot(self, shots: int | None = None) -> Figure:
        """Base against novel accuracy of all methods, with so many shots (the fewest by default)."""
        from predictor.figures.accuracies import draw_methods

        counts = [int(record["shots"]) for record in self.records if record["shots"] != "all"]
        return displayed(draw_methods(self.records, str(shots if shots is not None else min(counts, default=1))))


def named(record: Record, has_shares: bool = False) -> str:
    """With what became of its constant: rows of tables that were kept before do not say."""
    parts, failed = [record["method"], *[record["d_large"]] * has_shares], record.get("calibration_failed") or ""
    why = NOT_FITTED if failed.startswith(NOT_FITTED) else "no constant: calibration failed"
    return ", ".join(parts) + f" ({why})" * bool(failed)


def _short(record: Record, name: str) -> str:
    interval = record[f"{name}_ci95"]
    return shown(record[name]) + ("" if record[name] is None or interval is None else f" ±{interval:.1f}")


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


def _pair(record: Record, top1: str, top5: str) -> str:
    return "" if record[top1] is None else f"{with_interval(record, top1)} / {record[top5]:.2f}"


def _rounded(value: float) -> float | None:
    return None if value != value else round(value, 2)  # NaN: a single draw has no interval
