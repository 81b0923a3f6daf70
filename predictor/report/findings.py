"""What the table of all methods says in words: where phi2 stands beside every other method, and where that differs from
the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Any, Literal

from predictor.protocol.results import CALIBRATED, MethodKey, key_of, with_interval
from predictor.report.all_way_table import OURS

Standing = Literal["ahead", "behind", "level", "unknown"]
PLACES: dict[Standing, str] = {"ahead": "ahead of", "behind": "behind", "level": "level (within noise) with",
                               "unknown": "beside"}  # fmt: skip
CHANCE = 0.5  # percent: five guesses among a thousand categories
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """standing: of phi2 against the method. as_paper: None where the paper has no such row or figure, or noise
    decides."""

    method: MethodKey
    text: str
    standing: Standing
    as_paper: bool | None = None


def describe_ausuc(records: Sequence[Record], shots: str = "1") -> list[Finding]:
    """phi2 beside every other method by AUSUC, which depends on no constant; each as it was calibrated where it was."""
    rows = _each_once([row for row in records if row["shots"] == shots and row.get("ausuc") is not None])
    ours = _reference(rows)
    return [] if ours is None else [_describe_ausuc(ours, row) for row in rows if row is not ours]


def _describe_ausuc(ours: Record, row: Record) -> Finding:
    standing = compare(ours, row, "ausuc")
    text = f"{PLACES[standing]} {name_of(row)}: {_against(ours, row, 'ausuc')}"
    if (paired := _paired(ours, row, "ausuc")) is not None:
        text += " (difference on the same draws: {:+.2f} ± {:.2f})".format(*paired)
    return Finding(key_of(row), text, standing)


def _each_once(rows: Sequence[Record]) -> list[Record]:
    """Without the rows beside which the same method is calibrated."""
    calibrated = [(row["method"], row["d_large"]) for row in rows if key_of(row).is_calibrated]

    def is_doubled(row: Record) -> bool:
        name = row["method"].removesuffix(f", {row['variant']}")
        return any(
            share == row["d_large"] and method.startswith(f"{name}, {CALIBRATED}") for method, share in calibrated
        )

    return [row for row in rows if key_of(row).is_calibrated or not is_doubled(row)]


def describe_order(records: Sequence[Record], shots: str = "1") -> list[Finding]:
    """phi2 beside the methods of the paper's table by what the paper has: novel top-1 without a constant."""
    rows = [row for row in records if row["shots"] == shots and not key_of(row).is_calibrated]
    ours = _ours(rows, "")
    if ours is None or ours.get("paper_top1_few") is None:
        return []
    return [_describe_order(ours, row) for row in rows if row is not ours and row.get("paper_top1_few") is not None]


def _describe_order(ours: Record, row: Record) -> Finding:
    standing, theirs, paper = compare(ours, row, "top1_few"), ours["paper_top1_few"], row["paper_top1_few"]
    text = f"{PLACES[standing]} {name_of(row)}: {_against(ours, row, 'top1_few')}"
    text += f" (paper: {theirs:.2f} against {paper:.2f})"
    if untaught(row):
        note = "its novel top-5 is below chance, so it was not trained long enough for its figure to count"
        return Finding(key_of(row), f"{text}; {note}", standing)
    if standing == "behind" and "top1_large" in row:
        text += f"; on base categories {_against(ours, row, 'top1_large')}"
    is_known = standing in ("ahead", "behind")
    return Finding(key_of(row), text, standing, (standing == "ahead") == (theirs > paper) if is_known else None)


def describe_phenomenon(records: Sequence[Record]) -> list[str]:
    """Three sentences: how well the network knows what it was trained on, what becomes of new categories beside it, and
    what a constant makes of it. None where the table lacks phi2 or nearest neighbours."""
    counts = [row["shots"] for row in records if row["shots"] != "all"]
    shots = min(counts, key=int, default="1")
    rows = [row for row in records if row["shots"] == shots]
    ours, fitted = _ours(rows, ""), _ours(rows, CALIBRATED)
    nearest = next((row for row in rows if key_of(row) == MethodKey("nn")), None)
    if ours is None or nearest is None:
        return []
    own = max((row for row in rows if not key_of(row).is_calibrated), key=lambda row: float(row["top1_large"]))
    examples = "one example" if shots == "1" else f"{shots} examples"
    sentences = [
        f"Of the images of known categories up to {own['top1_large']:.0f}% are recognised ({name_of(own)}) while new "
        f"categories, shown by {examples} each, compete with them.",
        f"Beside what is known, and without a constant, nearest neighbours recognise {nearest['top1_few']:.0f}% of the "
        f"images of new ones, and phi2, which predicts a classifier from {examples} without training, "
        f"{ours['top1_few']:.0f}%.",
    ]
    if fitted is not None:
        sentences.append(
            "One constant on the scores of new categories moves a method along its curve; calibrated without any of "
            f"them, phi2 recognises {fitted['top1_large']:.0f}% of the known and {fitted['top1_few']:.0f}% of the new."
        )
    return sentences


def describe_harmonic(records: Sequence[Record], shots: str = "1") -> str | None:
    """Where the calibrated phi2 stands by harmonic mean among methods that were shown these few examples."""
    rows = [row for row in records if row["shots"] == shots]
    ours = _ours(rows, CALIBRATED)
    others = [row for row in rows if row is not ours]
    if ours is None or not others:
        return None
    best = max(others, key=lambda row: float(row["harmonic_mean"]))
    standing = compare(ours, best, "harmonic_mean")
    place = {"ahead": "the best", "level": "within noise of the best other", "behind": "behind the best",
             "unknown": "beside the best other"}[standing]  # fmt: skip
    mine, theirs = (with_interval(row, "harmonic_mean") for row in (ours, best))
    what = "The harmonic mean of base and novel top-1 of phi2, calibrated, is"
    return f"{what} {mine}: {place} ({name_of(best)}: {theirs})."


def compare(ours: Record, other: Record, key: str) -> Standing:
    """Level where the 95% interval of the difference on the same draws holds 0; without one, where the means differ by
    less than both intervals together (the root of the sum of squares). Unknown without any interval."""
    if (paired := _paired(ours, other, key)) is not None:
        difference, noise = paired
    else:
        mine, theirs = (row.get(f"{key}_ci95") for row in (ours, other))
        if mine is None or theirs is None:
            return "unknown"
        difference, noise = float(ours[key]) - float(other[key]), hypot(mine, theirs)
    if abs(difference) <= noise:
        return "level"
    return "ahead" if difference > 0 else "behind"


def _paired(ours: Record, other: Record, key: str) -> tuple[float, float] | None:
    """By how much ours is higher on the same draws, with half of its 95% interval; None where they were not paired."""
    if other.get("against") != ours["method"] or other.get(f"{key}_difference") is None:
        return None
    return -float(other[f"{key}_difference"]) + 0.0, float(other[f"{key}_difference_ci95"])


def untaught(row: Record) -> bool:
    """Whether a method that trains knows less of novel categories than a blind guess among a thousand would."""
    return row.get("finetuned") == "Y" and float(row.get("top5_few", 100.0)) < CHANCE


def name_of(row: Record) -> str:
    share = f" with {row['d_large']} of D_large" if key_of(row).is_by_share else ""
    return f"{row['method']}{share}"


def _ours(rows: Sequence[Record], variant: str) -> Record | None:
    keys = [(key_of(row), row) for row in rows]
    return next((row for method, row in keys if (method.key, method.variant) == (OURS, variant)), None)


def _reference(rows: Sequence[Record]) -> Record | None:
    """phi2 calibrated where it is: the one whose draws the others are paired with."""
    return _ours(rows, CALIBRATED) or _ours(rows, "")


def _against(ours: Record, row: Record, key: str) -> str:
    return f"{with_interval(ours, key)} against {with_interval(row, key)}"


def describe_run(records: Sequence[Record]) -> dict[str, Any] | None:
    """None where no method was shown examples."""
    shots = min((row["shots"] for row in records if row["shots"] != "all"), key=int, default=None)
    if shots is None:
        return None
    order, ours = describe_order(records, shots), _reference([row for row in records if row["shots"] == shots])
    other = [finding for finding in order if finding.as_paper is False]
    return {
        "shots": shots, "ours": ours and ours["method"], "listed": describe_ausuc(records, shots),
        "harmonic": describe_harmonic(records, shots), "unlike_paper": other,
        "has_few_rows": any(finding.method.is_by_share and finding.method.share == "1%" for finding in other),
        "is_as_paper": any(finding.as_paper for finding in order),
    }  # fmt: skip
