"""`ppa bench-adapt`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from cli.group import emit, example, json_option, table
from cli.options import device_option, threads_option
from cli.ppa.options import PHI_RUN


@click.command(
    epilog=example(
        "ppa bench-adapt", "ppa bench-adapt --phi runs/phi2 --categories 100 --shots 5", "ppa bench-adapt --device cuda"
    )
)
@click.option("--phi", type=PHI_RUN, help="A run of `ppa train`.  [default: an untrained phi2]")
@click.option("--dim", type=click.IntRange(1), default=2048, show_default=True, help="Without --phi.")
@click.option("--categories", type=click.IntRange(1), default=100, show_default=True, help="To learn.")
@click.option("--shots", type=click.IntRange(1), default=1, show_default=True, help="Examples of each.")
@click.option("--base", type=click.IntRange(1), default=900, show_default=True, help="Categories known already.")
@click.option("--images", type=click.IntRange(1), default=1_200_000, show_default=True, help="Of an epoch of training.")
@click.option("--backbone", default="resnet50", show_default=True, help="none: leave its times out.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=10, show_default=True, help="Per figure.")
@threads_option
@device_option("cpu", "cpu or cuda, of the trainings and the backbone.")
@json_option
def bench_adapt(
    phi: Path | None, dim: int, categories: int, shots: int, base: int, images: int, backbone: str, seconds: float,
    threads: int | None, device: str,
) -> None:  # fmt: skip
    """Seconds to learn new categories: by predicted parameters, and by an epoch of training (an estimate).

    The paper's 0.683 s against 1.8 h per epoch, on this machine. Its 0.683 s are 100 passes of the network at 6.83 ms,
    so that figure stands beside ours with the network's pass; without it ours is of activations that are stored. An
    epoch is the median step times the number of steps; decoding of images is left out.
    """
    import torch

    from actstore.compute import parse_device, reuse_freed_memory
    from baselines.inference.adaptation import epoch_results

    place = parse_device(device)
    torch.set_num_threads(threads or os.cpu_count() or 1)
    reuse_freed_memory()
    results = predicted(phi, dim, categories, shots, base, backbone, seconds, place)
    results += epoch_results(results[-1]["value"], dim, base + categories, images, backbone, seconds, place)
    emit(results, describe(results))


def predicted(
    phi: Path | None, dim: int, categories: int, shots: int, base: int, backbone: str, budget: float, device: Any
) -> list[dict[str, Any]]:
    """From stored activations, and from images: with the network's pass over the examples, as the paper counts."""
    import torch

    from actstore.backbones import construct
    from actstore.compute import Result
    from baselines.inference.adaptation import seconds_per_epoch
    from baselines.inference.parts import backbone_part
    from predictor.classifier.classifier import Classifier
    from predictor.phi.network import Phi
    from predictor.protocol.paper import read_table
    from predictor.training.phi_config import TrainConfig
    from predictor.training.trained_phi import load_phi

    network = Phi(TrainConfig().spec(dim)).eval().requires_grad_(False) if phi is None else load_phi(phi).phi
    dim = network.spec.dim
    random = torch.Generator().manual_seed(0)
    learner = Classifier.from_means(
        network, [f"base {n}" for n in range(base)], torch.rand(base, dim, generator=random)
    )
    examples = torch.rand(categories, shots, dim, generator=random)

    def learn() -> None:
        learner.support.clear()
        learner.adapt_all({f"novel {number}": examples[number] for number in range(categories)})
        _ = learner.rows

    took, _ = seconds_per_epoch(learn, 1, 1, min(budget, 3), device)
    name = f"{network.spec.kind}, {categories} categories of {shots}, from"
    results = [Result(f"{name} activations", took, "s")]
    if backbone != "none":
        batch = torch.rand(min(32, categories * shots), 3, 224, 224, device=device)
        batch = batch.contiguous(memory_format=torch.channels_last)
        part = backbone_part(construct(backbone, 0).module, backbone, device)
        seen, _ = seconds_per_epoch(lambda: part.run(batch), len(batch), categories * shots, min(budget, 3), device)
        paper = next(float(row["value"]) for row in read_table("efficiency") if row["what"].startswith("adapting"))
        took += seen
        of = "paper (100 of 1, one GPU)"
        results.append(Result(f"{name} images through {backbone}", took, "s", of, paper, took / paper))
    return [result.to_json() for result in results]


def describe(results: list[dict[str, Any]]) -> str:
    rows = [
        [result["name"], f"{result['value']:,.4g} s", f"{result['peer_value']:,.4g} s" if result["peer_value"] else "",
         f"{result['x_predicted']:,.0f}" if "x_predicted" in result else ""]
        for result in results
    ]  # fmt: skip
    return table(["", "here", "paper", "x predicted"], rows)
