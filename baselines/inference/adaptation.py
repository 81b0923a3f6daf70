"""What learning new categories costs: by predicted parameters, and by one epoch of the baselines that are trained.

Qiao, Liu, Shen and Yuille, CVPR 2018: 0.683 s for 100 categories by predicted parameters on one GPU (100 passes of the
network at 6.83 ms), and 1.8 hours per epoch of fine-tuning or of Learning like a Child on four.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from actstore.backbones.construction import construct
from actstore.compute import parse_device, reuse_freed_memory
from actstore.compute.device import has_half
from actstore.compute.process import Result
from baselines.inference.latency import backbone_part, timed
from predictor.protocol.results import Results, Table, read_table
from predictor.training.backbones.pretraining import learning_step


def seconds_per_epoch(
    step: Callable[[], Any], images_per_step: int, images: int, budget: float, device: torch.device
) -> tuple[float, int]:
    """An epoch's seconds from the median of the steps that fit into the budget, and how many those were."""
    timed(step, device)  # warm-up
    taken: list[float] = []
    while not taken or sum(taken) < budget:
        taken.append(timed(step, device))
    return statistics.median(taken) * images / images_per_step, len(taken)


def time_adaptation(
    learn: Callable[[Mapping[str, Tensor]], Any],
    kind: str,
    *,
    dim: int = 2048,
    categories: int = 100,
    shots: int = 1,
    base: int = 900,
    images: int = 1_200_000,
    backbone: str = "resnet50",
    seconds: float = 10.0,
    threads: int | None = None,
    device: str = "cpu",
) -> AdaptationResults:
    """Time how long it takes to learn categories by predicted parameters, and estimate an epoch of training.

    Args:
        learn: learns categories from a dictionary of examples (shots, dim).
        kind: what does it, such as "phi2".
        dim: number of values in an activation.
        categories: how many categories are learnt.
        shots: examples of each.
        base: how many categories are known already.
        images: how many images an epoch has.
        backbone: the network whose pass over the examples is added, as in the paper, or "none".
        seconds: how long each figure is measured.
        threads: of the processor, by default as many as torch uses.
        device: "cpu", "cuda", "cuda:1" or "auto".

    Returns:
        Seconds from activations, from images, and of the epochs.
    """
    place = parse_device(device)
    torch.set_num_threads(threads or torch.get_num_threads())
    reuse_freed_memory()
    examples = dict(zip((f"novel {n}" for n in range(categories)), torch.rand(categories, shots, dim), strict=True))
    took, _ = seconds_per_epoch(partial(learn, examples), 1, 1, min(seconds, 3), place)
    name = f"{kind}, {categories} categories of {shots}, from"
    results = [Result(f"{name} activations", took, "s")]
    if backbone != "none":
        batch = torch.rand(min(32, categories * shots), 3, 224, 224, device=place)
        batch = batch.contiguous(memory_format=torch.channels_last)
        part = backbone_part(construct(backbone, 0).module, backbone, place)
        seen, _ = seconds_per_epoch(partial(part.run, batch), len(batch), categories * shots, min(seconds, 3), place)
        paper = next(float(row["value"]) for row in read_table("efficiency") if row["what"].startswith("adapting"))
        took += seen
        of = "paper (100 of 1, one GPU)"
        results.append(Result(f"{name} images through {backbone}", took, "s", of, paper, took / paper))
    listed = [result.to_json() for result in results]
    return AdaptationResults(listed + epoch_results(took, dim, base + categories, images, backbone, seconds, place))


def epoch_results(
    predicted: float, dim: int, categories: int, images: int, backbone: str, budget: float, device: torch.device
) -> list[dict[str, Any]]:
    """An epoch of the classifier alone, and of fine-tuning the backbone unless that is none, beside the paper's.

    predicted: the seconds by predicted parameters, of which each says how many times it is.
    """
    layer, rows = nn.Linear(dim, categories, device=device), torch.rand(256, dim, device=device)  # as Child trains
    steps = {"one epoch of the classifier from stored activations": (learning_step(layer, rows), 256)}
    if backbone != "none":
        network = construct(backbone, 0).module.train().to(device)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        seen = torch.rand(32, 3, 224, 224, device=device).contiguous(memory_format=torch.channels_last)
        step = learning_step(network, seen, has_half(device))
        steps[f"one epoch of fine-tuning {backbone}, all layers"] = (step, 32)
    values = {row["what"]: float(row["value"]) for row in read_table("efficiency")}
    paper = values["fine-tuning or Learning like a Child per epoch"] * 3600
    results = []
    for what, (step, batch) in steps.items():
        took, count = seconds_per_epoch(step, batch, images, budget, device)
        name = f"{what}, {images:,} images (estimate, {count} steps)"
        result = Result(name, took, "s", "paper (1.8 h per epoch, 4 GPUs)", paper, took / paper)
        results.append(result.to_json() | {"x_predicted": took / predicted})
    return results


class AdaptationResults(Results):
    """Of `baselines.time_adaptation`: seconds by predicted parameters, and of an epoch of each training."""

    def tables(self, wide: bool = False) -> list[Table]:
        lines = [
            [each["name"], f"{each['value']:,.4g} s", f"{each['peer_value']:,.4g} s" if each["peer_value"] else "",
             f"{each['x_predicted']:,.0f}" if "x_predicted" in each else ""]
            for each in self.records
        ]  # fmt: skip
        return [Table(["", "here", "paper", "x predicted"], lines)]
