"""What an audit says: findings, each about a row or a feature, and scores of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from actstore.spec import Json
from actstore.split import Split

Kind = Literal["copy", "near-copy", "suspect-label", "outlier", "empty-row", "dead-feature"]
KINDS: tuple[Kind, ...] = get_args(Kind)
COLUMNS = (
    "kind", "leak", "split", "row", "id", "label", "other_split", "other_row", "other_id", "other_label",
    "similarity", "score", "conflict",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """row: of the split; of a dead feature, its number. A copy is the same up to rounding, a near copy nearer than
    chance has it. Of both, the other row is the one that came first, in the
    split `train` where it has one; of a suspect label, the nearest row with the label `suggested`.

    score: of a suspect label and of an outlier, in standard deviations; of a near copy, its distance as a share of
    that of its furthest neighbour. suggested: a label, -1 for none.
    """

    kind: Kind
    split: str
    row: int
    other_split: str = ""
    other_row: int = -1
    similarity: float = 0.0
    score: float = 0.0
    suggested: int = -1

    @property
    def is_leak(self) -> bool:
        """A row of one split that another split holds too."""
        return self.kind in ("copy", "near-copy") and self.split != self.other_split


@dataclass(frozen=True)
class Audit:
    """contents: the hash of every split's rows, labels and ids. notes: what could not be looked at, and why.

    label_scores: (rows,) of every split, low is suspect, labels.UNJUDGED where there is nothing to judge.
    """

    contents: Mapping[str, str]
    settings: Mapping[str, Json]
    findings: Sequence[Finding]
    label_scores: Mapping[str, NDArray[np.float32]]
    measured: Mapping[str, Json]
    notes: Sequence[str]

    def of_kind(self, kind: Kind) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind == kind]

    def leaks(self, one: str | None = None, other: str | None = None) -> list[Finding]:
        """All of them, or those between two splits."""
        found = [finding for finding in self.findings if finding.is_leak]
        if one is None:
            return found
        return [finding for finding in found if {finding.split, finding.other_split} == {one, other}]

    def summary(self) -> dict[str, int]:
        return {"leaks": len(self.leaks()), **{kind: len(self.of_kind(kind)) for kind in KINDS}}


def record(finding: Finding, splits: Mapping[str, Split]) -> dict[str, Any]:
    """A finding with ids and class names: a line of a table, keys as in COLUMNS; None for what does not apply."""
    split = splits[finding.split]
    is_row = finding.kind != "dead-feature"
    label = class_of(split, finding.row) if is_row else None
    other = splits.get(finding.other_split)
    other_label = None if other is None else class_of(other, finding.other_row)
    if finding.suggested >= 0:
        other_label = split.classes[finding.suggested]
    is_pair = finding.kind in ("copy", "near-copy")
    return {
        "kind": finding.kind,
        "leak": finding.is_leak,
        "split": finding.split,
        "row": finding.row,
        "id": split.ids[finding.row] if is_row else None,
        "label": label,
        "other_split": finding.other_split or None,
        "other_row": finding.other_row if other is not None else None,
        "other_id": None if other is None else other.ids[finding.other_row],
        "other_label": other_label,
        "similarity": round(finding.similarity, 6) if other is not None else None,
        "score": round(finding.score, 4) if finding.kind not in ("copy", "empty-row") else None,
        "conflict": is_pair and label != other_label,
    }


def class_of(split: Split, row: int) -> str | None:
    label = int(split.labels[row])
    return split.classes[label] if label >= 0 else None
