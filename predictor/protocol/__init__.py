"""How few-shot recognition is measured: category split, support draws, tasks, methods, accuracies, the paper's tables.

Imports `actstore` alone; knows nothing of phi.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from actstore.lazy import lazily

if TYPE_CHECKING:
    from predictor.protocol.calibration import CALIBRATION_FILES, keys_replaced
    from predictor.protocol.category_split import alphabetical_split
    from predictor.protocol.head import head_for
    from predictor.protocol.setting import UNKNOWN_TRAINING, choose_shots, contamination, find_test_split, shots_to_fit

__all__ = [
    "CALIBRATION_FILES", "PHI_KINDS", "UNKNOWN_TRAINING", "alphabetical_split", "choose_shots", "contamination",
    "find_test_split", "head_for", "keys_replaced", "shots_to_fit",
]  # fmt: skip

# Here, as the options of commands name them, which must not wait for numpy or torch.
PhiKind = Literal["phi1", "phi2", "phi2star"]
PHI_KINDS: tuple[PhiKind, ...] = get_args(PhiKind)  # in the order in which they are shown

__getattr__, __dir__ = lazily(__name__)
