"""How many held-out images a network recognises."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from actstore.backbones.network import Transform
from predictor.training.backbones.augmentation import shrink
from predictor.training.backbones.batches import IGNORED, Batch, to_network


def count_recognised(
    logits_of: Callable[[Tensor], Tensor],
    batches: Iterable[Batch],
    transform: Transform,
    size: int,
    device: torch.device,
) -> Tensor:
    """(3,) images that were recognised at top-1 and at top-5, and all that could be read. size: side of the images."""
    counts = torch.zeros(3, device=device)  # whole numbers, exact up to 16 million
    with torch.inference_mode():
        for batch in batches:
            if not len(batch.targets):
                continue
            if size != transform.crop:
                batch = replace(batch, pixels=shrink(batch.pixels, size))
            images, targets = to_network(batch, transform, device)
            logits = logits_of(images)  # (n, n_class)
            hits = logits.topk(min(5, logits.shape[1])).indices == targets[:, None]  # (n, 5)
            counts += torch.stack([hits[:, 0].sum(), hits.sum(), (targets != IGNORED).sum()])
    return counts
