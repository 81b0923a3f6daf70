"""Several trainings of one network that differ by their seed, joined into one network with all of their activations.

Where a training has nothing more to learn from its images, a second one beside it still gives better features.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from actstore.backbones.construction import construct
from actstore.backbones.side_by_side import JOINED_BY
from actstore.backbones.weights import Weights, fit_weights, read_weights, save_weights
from actstore.errors import InvalidInputError


def join_members(members: Sequence[Path], out: Path) -> None:
    """members: files of weights of one network, trained on the same classes. The logits of what is written to `out`
    are the mean of theirs."""
    files = [read_weights(path) for path in members]
    first = files[0]
    for other in files[1:]:
        if (other.backbone, other.classes, other.transform) != (first.backbone, first.classes, first.transform):
            raise InvalidInputError(
                f"{other.path} must be of the same network, classes and image size as {first.path}; train both alike"
            )
    name = JOINED_BY.join(str(file.backbone) for file in files)
    network = construct(name).module
    joined = Weights(out, _joined_tensors([file.tensors for file in files]), name, first.classes, first.transform)
    fit_weights(network, joined, name, "fc")
    save_weights(out, network, name, first.classes, first.transform)


def _joined_tensors(members: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    layers = {
        f"networks.{place}.{name}": tensor
        for place, tensors in enumerate(members)
        for name, tensor in tensors.items()
        if not name.startswith("fc.")
    }
    weight = torch.cat([tensors["fc.weight"] for tensors in members], 1) / len(members)  # (n_class, members * dim)
    bias = torch.stack([tensors["fc.bias"] for tensors in members]).mean(0)
    return layers | {"fc.weight": weight, "fc.bias": bias}
