"""What the table of all methods says in words: where phi2 stands beside every other method, and where that differs from
the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Any, Literal

from predictor.protocol.results import CALIBRATED, MethodKey, key_of, with_interval
from predictor.report.all_way_table import OURS

Standing = Literal["ahead", "behind", "level"]
PLACES: dict[Standing, str] = {"ahead": "ahead of", "behind": "behind", "level": "level (within noise) with"}
CHANCE = 0.5  # percent: five guesses among a thousand categories
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """standing: of phi2 against the method. as_paper: None where the paper has no such row, or noise decides."""

    method: MethodKey
    text: str
    standing: Standing
    as_paper: bool | None


def describe_novel(records: Sequence[Record], shots: str = "1") -> list[Finding]:
    """phi2 beside every other method without a calibrated constant, by top-1 on novel categories."""
    rows = [row for row in records if row["shots"] == shots and not key_of(row).is_calibrated]
    ours = _ours(rows, "")
    return [] if ours is None else [_describe(ours, row) for row in rows if row is not ours]


def _describe(ours: Record, row: Record) -> Finding:
    standing, as_paper = compare(ours, row, "top1_few"), None
    text = f"{PLACES[standing]} {name_of(row)}: {_against(ours, row, 'top1_few')}"
    if untaught(row):
        note = "its novel top-5 is below chance, so it was not trained long enough for its figure to count"
        return Finding(key_of(row), f"{text}; {note}", standing, None)
    theirs, paper = ours.get("paper_top1_few"), row.get("paper_top1_few")
    if theirs is not None and paper is not None:
        text += f" (paper: {theirs:.2f} against {paper:.2f})"
        as_paper = None if standing == "level" else (standing == "ahead") == (theirs > paper)
    if standing == "behind" and "top1_large" in row:
        text += f"; on base categories {_against(ours, row, 'top1_large')}"
    return Finding(key_of(row), text, standing, as_paper)


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
        f"Beside what is known the new ones drown: nearest neighbours recognise {nearest['top1_few']:.0f}% of their "
        f"images, and phi2, which predicts a classifier from {examples} without training, {ours['top1_few']:.0f}%.",
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
    place = {"ahead": "the best", "level": "within noise of the best other", "behind": "behind the best"}[standing]
    mine, theirs = (with_interval(row, "harmonic_mean") for row in (ours, best))
    what = "The harmonic mean of base and novel top-1 of phi2, calibrated, is"
    return f"{what} {mine}: {place} ({name_of(best)}: {theirs})."


def compare(ours: Record, other: Record, key: str) -> Standing:
    """Level where the 95% interval of the difference on the same draws holds 0; without one, where the means differ by
    less than both intervals together (the root of the sum of squares)."""
    noise = hypot(ours.get(f"{key}_ci95") or 0.0, other.get(f"{key}_ci95") or 0.0)
    difference = float(ours[key]) - float(other[key])
    if other.get("against") == ours["method"] and other.get(f"{key}_difference") is not None:
        difference, noise = -float(other[f"{key}_difference"]), float(other[f"{key}_difference_ci95"])
    if abs(difference) <= noise:
        return "level"
    return "ahead" if difference > 0 else "behind"


def untaught(row: Record) -> bool:
    """Whether a method that trains knows less of novel categories than a blind guess among a thousand would."""
    return row.get("finetuned") == "Y" and float(row.get("top5_few", 100.0)) < CHANCE


def name_of(row: Record) -> str:
    share = f" with {row['d_large']} of D_large" if key_of(row).is_by_share else ""
    return f"{row['method']}{share}"


def _ours(rows: Sequence[Record], variant: str) -> Record | None:
    keys = [(key_of(row), row) for row in rows]
    return next((row for method, row in keys if (method.key, method.variant) == (OURS, variant)), None)


def _against(ours: Record, row: Record, key: str) -> str:
    return f"{with_interval(ours, key)} against {with_interval(row, key)}"


def describe_run(records: Sequence[Record]) -> dict[str, Any] | None:
    """None where no method was shown examples."""
    shots = min((row["shots"] for row in records if row["shots"] != "all"), key=int, default=None)
    if shots is None:
        return None
    listed = describe_novel(records, shots)
    other = [finding for finding in listed if finding.as_paper is False]
    return {
        "shots": shots, "listed": listed, "harmonic": describe_harmonic(records, shots), "unlike_paper": other,
        "has_few_rows": any(finding.method.is_by_share and finding.method.share == "1%" for finding in other),
        "is_as_paper": any(finding.as_paper for finding in listed),
    }  # fmt: skip
