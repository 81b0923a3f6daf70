"""phi's training in float64: what processors round differently stays far below what a mistake would change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from actstore.streams.class_batches import Batch
from predictor.training.phi import PhiTraining


class PrecisePhiTraining(PhiTraining):
    """In the place of `predictor.training.phi.PhiTraining`."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.phi.double()  # in place: the optimiser holds the same parameters

    def _stream(self, first: int) -> Iterator[Batch]:  # type: ignore[override]
        for batch in super()._stream(first):
            yield replace(batch, statistics=batch.statistics.double(), queries=batch.queries.double())
