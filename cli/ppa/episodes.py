"""`ppa episodes`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cli.group import example, json_option
from cli.options import PATH, device_option, seed_option
from cli.outputs import claim, claim_kept_table
from cli.ppa.options import phis_option, shots_option, split_file_option, table_option
from cli.ppa.recognition import choose_categories, emit_results, make_baselines, open_measured
from cli.stores import Place, store_option
from predictor.report import EPISODES

METHODS = "nn,class-mean,imprint,finetune"
FEW_QUERIES = 15  # of each category: what learners that look at a whole task at once are asked about


@click.command(
    epilog=example(
        "ppa episodes --store mini.zarr --split-file miniimagenet-split.json --phi phi1 --phi phi2",
        "ppa episodes --store mini.zarr --shots 1,5 --tasks 2000 --out table.md",
        "ppa episodes --images mini.tar --split-file split.json --learner runs/maml --queries 15",
    )
)
@store_option("The activation store.  [default: as elsewhere]")
@split_file_option
@click.option("--split", "splits", help="Splits whose rows are pooled.  [default: all there are of train,val,test]")
@click.option("--way", type=click.IntRange(2), default=5, show_default=True, help="Categories of a task.")
@shots_option
@click.option("--tasks", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--queries", type=click.IntRange(1), help="Of each category.  [default: all, or 15 with --learner]")
@click.option(
    "--methods",
    default=METHODS,
    show_default=True,
    help="With commas; simple-shot, ridge and tip-adapter too, none for no such method.",
)
@phis_option
@click.option("--images", help="Where the learners' images are, see `ppa baseline`.")
@click.option(
    "--learner", "learners", multiple=True, type=PATH,
    help="A run of `ppa baseline` with images, such as maml; repeatable.",
)  # fmt: skip
@device_option(help_="Of the learners: auto, cpu, cuda, cuda:1, mps or xpu.")
@seed_option
@table_option
@json_option
def episodes(
    store: Place | None, split_file: Path | None, splits: str | None, queries: int | None, methods: str,
    phis: tuple[Path, ...], images: str | None, learners: tuple[Path, ...], device: str, out: Path | None,
    **measured: Any,
) -> None:  # fmt: skip
    """Measure recognisers on N-way K-shot tasks of the novel categories (C_few), beside the paper's table.

    Every method gets the same tasks, a function of the seed. Accuracy is the mean over tasks, in percent, with its
    95% confidence interval. AUROC: images of known against unknown categories, where half of a task's are withheld.
    The table is kept in results/episodes.json, where `ppa report` finds it, unless --out is a .json; an earlier
    one that differs becomes episodes-1.json, episodes-2.json and so on.
    """
    if learners and images is None:
        raise click.UsageError("--learner reads images: say where they are with --images")
    if learners and queries is None:
        queries = FEW_QUERIES
        click.echo(f"queries: {queries} of each category, as some learners score those of a task together", err=True)
    kept = claim_kept_table(out, EPISODES)
    claim(out, inputs=[store, split_file, *phis, *learners])
    import baselines
    import predictor

    compared: list[Any] = []
    opened, categories = None, None
    pooled = splits.split(",") if splits else None
    if store is not None or images is None:
        trained, opened, categories = open_measured(store, phis, split_file)
        compared = [*make_baselines(methods, baselines.EPISODE_NAMES), *trained]
        if not compared:
            raise click.UsageError("nothing to measure: name --methods, --phi or --learner")
    runs = []
    if images is not None and learners:
        runs = baselines.read_learners(
            learners, images, lambda names: choose_categories(split_file, names).novel, pooled, device
        )
    results = predictor.run_episodes(
        compared, opened, categories, queries=queries, splits=pooled, runs=runs, progress=True, **measured
    )
    emit_results(results, out, kept)
