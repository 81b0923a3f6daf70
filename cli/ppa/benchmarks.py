"""`ppa bench-inference` and `ppa bench-adapt`: the paper's times, on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from actstore.search import INDEX_KINDS
from cli.group import emit, example, json_option
from cli.options import chart_option, device_option, threads_option
from cli.outputs import claim, claim_kept_table
from cli.ppa.options import PHI_RUN, table_option
from cli.ppa.recognition import emit_results
from cli.stores import Place, find_store, store_option
from predictor.report import BENCH


@click.command(
    epilog=example(
        "ppa bench-inference",
        "ppa bench-inference --store imagenet.zarr --chart inference.png",
        "ppa bench-inference --synthetic 1200000x2048 --out table.md",
        "ppa bench-inference --store imagenet.zarr --device cuda",
    )
)
@store_option("Search its rows.  [default: $ACTSTORE, or the one *.zarr here; where there is none, generated rows]")
@click.option("--split", default="train", show_default=True)
@click.option("--synthetic", metavar="ROWSxDIM", help="Generate rows that resemble a ResNet-50's, in memory.  "
              "[default without a store: 1200000x2048, or what fits]")  # fmt: skip
@click.option("--batch", "batches", type=click.IntRange(1), multiple=True, default=(1, 32), show_default=True)
@click.option("--categories", type=click.IntRange(2), default=1000, show_default=True, help="Of the classifier.")
@click.option("--backbone", help="Its time alone; weights do not matter. none: skip.  "
              "[default: the store's, if it is one of ours, else resnet50]")  # fmt: skip
@click.option("--approximate", type=click.Choice([*INDEX_KINDS, "none"]), default="pq", show_default=True)
@click.option("--fp32/--no-fp32", default=True,
              help="What the paper did, and faiss's flat search, over 4 bytes a value.  [default: where memory allows]"
              )  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=6, show_default=True,
              help="For each figure, and at least three runs.")  # fmt: skip
@threads_option
@device_option("cpu", "cpu or cuda.")
@chart_option
@table_option
@json_option
def bench_inference(
    store: Place | None, synthetic: str | None, chart: Path | None, out: Path | None, **measured: Any
) -> None:
    """Milliseconds from image to category: by predicted parameters, and by nearest neighbours of every kind.

    The paper's 6.83 ms against 37.867 ms and 45 GB, on this machine. Parts take turns; median and 95th percentile
    per image; the rows and what every search needs are in memory before the clock starts. What does not fit into
    memory is left out with a line. The table is kept in results/bench-inference.json, where `ppa report` finds it,
    unless --out is a .json; an earlier one becomes bench-inference-1.json, bench-inference-2.json and so on.
    """
    kept = claim_kept_table(out, BENCH)
    claim(out, inputs=[store])
    claim(chart)
    import baselines

    rows: Any = store
    if synthetic is None:
        with suppress(click.UsageError):  # there is no store here, or no one of them is meant
            rows = find_store(store)
    results = baselines.time_inference(rows, synthetic, progress=True, **measured)
    emit_results(results, out, kept, chart)


@click.command(epilog=example("ppa bench-adapt", "ppa bench-adapt --phi runs/phi2 --categories 100 --shots 5"))
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
    emit(results.records, results.to_text())
