"""Which method a row of a table is of: told by its key, whatever the method is called in print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

PhiKind = Literal["phi1", "phi2", "phi2star"]
PHI_KINDS: tuple[PhiKind, ...] = get_args(PhiKind)  # in the order in which they are shown
LABELS = {"phi1": "phi1", "phi2": "phi2", "phi2star": "phi2*"}  # as the paper's table names them
CALIBRATED = "calibrated"
BY_SHARE = ("nn", "triplet", "triplet-images")  # measured with several shares of D_large
NAMES_BEFORE_KEYS = {  # of tables that were written before rows had a key
    **{label: kind for kind, label in LABELS.items()},
    "NN+Cosine": "nn",
    "Triplet": "triplet",
    "Triplet (activations)": "triplet",
    "Triplet (images)": "triplet-images",
    "Fine-Tuned fc (activations)": "finetune",
    "Fine-Tuned network (images)": "finetune-images",
    "Learning like a Child": "child",
    "Imprinting": "imprint",
    "Imprinting (base rows too)": "imprint-base-rows",
    "Nearest class mean": "class-mean",
    "Oracle NN": "oracle-nn",
    "Oracle linear": "oracle-linear",
}


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
    """Of a row as `predictor.report.all_way_table.records` gives it, or as an earlier release wrote it."""
    if "key" in row:
        return MethodKey(row["key"], row["variant"], row["d_large"])
    name, _, variant = str(row["method"]).partition(", ")
    return MethodKey(NAMES_BEFORE_KEYS.get(name, name), variant, row["d_large"])
