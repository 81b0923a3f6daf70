"""`ppa bench-adapt`."""

from __future__ import annotations

from collections.abc import Mapping
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
def bench_adapt(phi: Path | None, dim: int, base: int, **measured: Any) -> None:
    """Seconds to learn new categories: by predicted parameters, and by an epoch of training (an estimate).

    The paper's 0.683 s against 1.8 h per epoch, on this machine. Its 0.683 s are 100 passes of the network at 6.83 ms,
    so that figure stands beside ours with the network's pass; without it ours is of activations that are stored. An
    epoch is the median step times the number of steps; decoding of images is left out.
    """
    import torch

    import baselines
    import predictor
    from predictor.phi import Phi, PhiSpec

    untrained = Phi(PhiSpec("phi2", dim, input_norm=True, bias=True)).eval().requires_grad_(False)
    network = untrained if phi is None else predictor.load_phi(phi).phi
    dim, known = network.spec.dim, [f"base {number}" for number in range(base)]
    learner = predictor.Classifier.from_means(network, known, torch.rand(base, dim))  # values do not matter

    def learn(examples: Mapping[str, Any]) -> None:
        learner.support.clear()
        learner.adapt_all(examples)
        _ = learner.rows

    results = baselines.time_adaptation(learn, network.spec.kind, dim=dim, base=base, **measured)
    emit(results, describe(results))


def describe(results: list[dict[str, Any]]) -> str:
    rows = [
        [result["name"], f"{result['value']:,.4g} s", f"{result['peer_value']:,.4g} s" if result["peer_value"] else "",
         f"{result['x_predicted']:,.0f}" if "x_predicted" in result else ""]
        for result in results
    ]  # fmt: skip
    return table(["", "here", "paper", "x predicted"], rows)
