"""Training batches on an accelerator: the CPU's, sent as they are stored, on a stream of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from actstore.streams.class_batches import ClassBatches
from tests.simulated_accelerator import SimulatedTensor

NAMES = ("statistics", "queries", "targets")


@pytest.mark.parametrize("device", ["sim", "sim:1"])
@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("world_size", [1, 2])
def test_batches_are_those_of_the_cpu(
    card: Any, make_store: Any, device: str, resident: bool, prefetch: int, world_size: int
) -> None:
    train = make_store(rows=300, dim=16)["train"]
    options: dict[str, Any] = {"seed": 3, "steps": 5, "p_mean": 0.5, "prefetch": prefetch, "resident": resident}
    options |= {"rank": world_size - 1, "world_size": world_size}
    stream = ClassBatches(train, **options, device=device)
    for own, expected in zip(stream, ClassBatches(train, **options), strict=True):
        for name in NAMES:
            tensor = getattr(own, name)
            assert isinstance(tensor, SimulatedTensor)
            assert tensor.device == torch.device("sim", torch.device(device).index or 0)
            assert torch.equal(
                (tensor + 0).cpu(), getattr(expected, name)
            )  # used, as a step does: streams are in order
    assert torch.equal(stream.batch(2).queries.cpu(), ClassBatches(train, **options).batch(2).queries)


@pytest.mark.parametrize(("dtype", "stored"), [("f2", torch.float16), ("f4", torch.float32)])
def test_rows_travel_as_they_are_stored_from_pinned_memory(
    card: Any, make_store: Any, dtype: str, stored: torch.dtype
) -> None:
    train = make_store(rows=300, dim=16, dtype=dtype)["train"]
    stream = ClassBatches(train, seed=3, prefetch=0, device="sim", p_mean=1.0)
    card.counts.clear()
    batch = stream.batch(0)
    assert card.counts["pinned"] == 1
    assert card.counts[f"bytes to card, {stored}"] == batch.queries.numel() * stored.itemsize
    assert card.counts["bytes to card, torch.float32"] == (dtype == "f4") * batch.queries.numel() * 4


def test_the_card_itself_notices_what_is_not_waited_for(
    card: Any, make_store: Any, random: np.random.Generator
) -> None:
    stream = ClassBatches(make_store(rows=100, dim=16)["train"], device="sim")
    batch, arrive = stream._send(0)
    with pytest.raises(RuntimeError, match="without having waited"):
        batch.queries + 0
    arrive()
    batch.queries + 0
