"""`ppa sessions`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cli.group import example, json_option
from cli.options import PATH, chart_option, seed_option
from cli.outputs import claim
from cli.ppa import options
from cli.ppa.recognition import emit_results, make_baselines, open_measured
from cli.stores import Place, store_option


@click.command(
    epilog=example(
        "ppa split --store mini.zarr --novel-share 0.4 --out sixty.json      # the usual 60 base categories, 40 novel",
        "ppa pretrain mini.tar --split-file sixty.json --flip --out sixty",
        "actstore build mini.tar sixty.zarr --backbone small --weights sixty/best.safetensors",
        "ppa train --phi phi2 --store sixty.zarr --split-file sixty.json && ppa calibrate --phi runs/phi2 --shots 5",
        "ppa sessions --store sixty.zarr --phi runs/phi2 --chart sessions.png",
    )
)
@store_option(options.STORE_OF_PHI)
@options.phis_option
@click.option(
    "--methods", default="class-mean", show_default=True,
    help="Baselines that train nothing when they learn, with commas: nn, class-mean, simple-shot, ridge, … or none.",
)  # fmt: skip
@options.head_option()
@options.runs_option()
@options.split_file_option
@options.train_split_option("Where examples come from.")
@options.held_out_split_option()
@click.option("--way", type=click.IntRange(1), default=5, show_default=True, help="New categories of a session.")
@click.option("--shots", type=click.IntRange(1), default=5, show_default=True, help="Examples of each.")
@click.option("--draws", type=click.IntRange(1), default=10, show_default=True, help="Of the examples.")
@click.option("--examples", type=PATH, help="A file with the paths of the images to show, one a line, such as the "
              "published lists of a data set; nothing is drawn then.")  # fmt: skip
@options.search_options
@seed_option
@options.table_option
@chart_option
@json_option
def sessions(
    store: Place | None, phis: tuple[Path, ...], methods: str, head: Path | None, runs: Path, split_file: Path | None,
    train: str, search: str, device: str, seed: int, out: Path | None, chart: Path | None, **measured: Any,
) -> None:  # fmt: skip
    """Add the novel categories a few at a time, as few-shot class-incremental learning is measured.

    After each session all test images of the categories known by then compete among all of them: accuracy, and the
    harmonic mean of base and novel accuracy, per session, on average and at the end. With 60 base categories and 8
    sessions of 5 from 5 examples, mini-ImageNet's usual protocol, published methods stand beside them. Of a backbone
    that was trained on a category of a session the table warns.
    """
    claim(out, inputs=[store, head, split_file, *phis])
    claim(chart)
    import predictor

    trained, opened, categories = open_measured(store, phis, split_file, train)
    making: dict[str, Any] = {"head": head, "runs": runs, "seed": seed, "search": search, "device": device}
    compared = [*make_baselines(methods, train=opened[train], split=categories, **making), *trained]
    if not compared:
        raise click.UsageError("nothing to measure: name a run with --phi, or baselines with --methods")
    results = predictor.run_sessions(compared, opened, categories, train=train, seed=seed, progress=True, **measured)
    emit_results(results, out, chart=chart)
