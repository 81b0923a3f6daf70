"""`ppa episodes`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.group import emit, example, json_option
from cli.options import PATH, Place, device_option, seed_option, store_option
from cli.outputs import claim_kept_table, claim_table, write_kept, write_table
from cli.ppa.options import phis_option, shots_option, split_file_option, table_option
from cli.ppa.recognition import are_of_imagenet, choose_categories, choose_shots, seen_novel, store_of, without_paper
from cli.progress import progress
from predictor.report.results_folder import EPISODES

if TYPE_CHECKING:
    from cli.ppa.episode_runs import Run
    from predictor.protocol.episodes import EpisodeResult
    from predictor.protocol.tasks import TaskSize

METHODS = "nn,class-mean,imprint,finetune"
FEW_QUERIES = 15  # the usual number where images are scored anew in every task


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
    "--methods", default=METHODS, show_default=True, help="With commas; simple-shot too, none for no such method."
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
    store: Place | None, split_file: Path | None, splits: str | None, way: int, shots: str | None, tasks: int,
    queries: int | None, methods: str, phis: tuple[Path, ...], images: str | None, learners: tuple[Path, ...],
    device: str, seed: int, out: Path | None,
) -> None:  # fmt: skip
    """Measure recognisers on N-way K-shot tasks of the novel categories (C_few), beside the paper's table.

    Every method gets the same tasks, a function of the seed. Accuracy is the mean over tasks, in percent, with its
    95% confidence interval. AUROC: images of known against unknown categories, where half of a task's are withheld.
    The table is kept in results/episodes.json, where `ppa report` finds it, unless --out is a .json.
    """
    if learners and images is None:
        raise click.UsageError("--learner reads images: say where they are with --images")
    if learners and queries is None:
        queries = FEW_QUERIES
        click.echo(f"queries: {queries} of each category, as some learners score those of a task together", err=True)
    kept = claim_kept_table(out, EPISODES)
    claim_table(out, [store, split_file, *phis, *learners])
    counts = choose_shots(shots)
    import actstore
    from cli.ppa.episode_runs import activation_run, image_runs, pooled_names
    from predictor.protocol.tasks import TaskSize
    from predictor.report.episode_table import episode_rows, to_markdown
    from predictor.report.text_tables import to_csv
    from predictor.training.trained_phi import load_phi

    runs: list[Run] = []
    seen, lacking, backbone, beside_paper = None, None, "", True
    if store is not None or images is None:
        trained = [load_phi(path) for path in phis]
        opened = actstore.open(store_of(store, trained))
        from_phi = bool(trained) and split_file is None
        categories = trained[0].categories if from_phi else choose_categories(split_file, opened.classes)
        if not categories.novel:
            raise click.UsageError("the split names no novel category to make tasks of")
        pooled = [opened[name] for name in pooled_names(opened.splits, splits)]
        backbone = str(pooled[0].spec.provenance.get("backbone"))
        seen, lacking = seen_novel(pooled[0], categories), without_paper(pooled[0])
        beside_paper = lacking is None and are_of_imagenet(categories)
        counts = choose_shots(shots, pooled[0], categories.novel, spare=1)
        runs.append(activation_run(pooled, categories, methods, trained))
    if images is not None and learners:
        runs += image_runs(images, learners, split_file, splits, device)
    sizes = [TaskSize(way, count, queries) for count in counts]
    rows = episode_rows(measure(runs, sizes, tasks, seed), sizes, backbone, beside_paper)
    if warning := "\n".join(filter(None, (seen, lacking))):
        click.echo(warning, err=True)
        rows = [{**row, "warning": warning} for row in rows]
    text = to_markdown(rows, sizes)
    write_table(out, rows, text, to_csv(rows))
    write_kept(kept, rows)
    what = f"{way}-way accuracy in %, ± 95% confidence interval over {tasks:,} tasks"
    emit(rows, "\n".join(filter(None, [text, what, warning])))


def measure(runs: Sequence[Run], sizes: Sequence[TaskSize], tasks: int, seed: int) -> list[EpisodeResult]:
    from predictor.protocol.episodes import run_episodes

    with progress("episodes", len(runs) * len(sizes) * tasks, "tasks") as bar:
        return [
            result
            for examples, methods in runs
            for size in sizes
            for result in run_episodes(methods, examples, size, tasks, seed, bar.update)
        ]
