"""One step of training, and one pass over the held-out images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from actstore.backbones.presets import TrainingConfig
from actstore.backbones.training_batches import IGNORED, Batch, to_network
from actstore.backbones.transform import Transform
from actstore.processes import Processes


@dataclass(frozen=True)
class Machine:
    """Where to compute, with whom, and what images must look like there."""

    device: torch.device
    processes: Processes
    transform: Transform

    @property
    def is_mixed(self) -> bool:
        """Half precision where the hardware gains from it."""
        return self.device.type == "cuda"


def make_optimiser(network: nn.Module, config: TrainingConfig) -> torch.optim.SGD:
    return torch.optim.SGD(
        network.parameters(),
        config.learning_rate,
        config.momentum,
        weight_decay=config.weight_decay,
        nesterov=config.momentum > 0,
    )


def train_step(
    model: nn.Module,
    optimiser: torch.optim.SGD,
    scaler: torch.amp.GradScaler,
    batch: Batch,
    whole: int,
    smoothing: float,
    machine: Machine,
) -> Tensor:
    """Returns (3,): sum of the losses, images recognised and images, over all processes.

    batch: this process's share of `whole` images. Gradients are averaged over processes as if all had
    equal shares; the factor makes that the mean over the whole batch.
    """
    images, targets = to_network(batch, machine.transform, machine.device)
    with torch.autocast(machine.device.type, torch.float16, enabled=machine.is_mixed):
        logits = model(images)  # (n, n_class)
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))  # of half precision
    loss = functional.cross_entropy(precise, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    optimiser.zero_grad()
    scaler.scale(loss * (machine.processes.count / whole)).backward()  # type: ignore[no-untyped-call]
    scaler.step(optimiser)
    scaler.update()
    recognised = (logits.detach().argmax(1) == targets).sum()
    images_seen = (targets != IGNORED).sum()
    return machine.processes.sum(torch.stack([one.to(loss.dtype) for one in (loss.detach(), recognised, images_seen)]))


def evaluate(network: nn.Module, batches: Iterable[Batch], machine: Machine) -> tuple[float, float]:
    """Top-1 and top-5 accuracy, 0 to 1, over all processes."""
    counts = torch.zeros(3, device=machine.device)  # top-1, top-5, images; whole numbers, exact up to 16 million
    network.eval()
    with torch.inference_mode():
        for batch in batches:
            if not len(batch.targets):
                continue
            images, targets = to_network(batch, machine.transform, machine.device)
            with torch.autocast(machine.device.type, torch.float16, enabled=machine.is_mixed):
                logits = network(images)  # (n, n_class)
            hits = logits.topk(min(5, logits.shape[1])).indices == targets[:, None]  # (n, 5)
            counts += torch.stack([hits[:, 0].sum(), hits.sum(), (targets != IGNORED).sum()])
    network.train()
    top1, top5, images_seen = machine.processes.sum(counts).tolist()
    return top1 / max(1, images_seen), top5 / max(1, images_seen)


def is_finite(network: nn.Module) -> bool:
    """Whether every weight and running statistic is a number."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in network.state_dict().values())
