"""`ppa episodes`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.group import emit, example, json_option
from cli.options import device_option, find_store, seed_option, store_option
from cli.ppa.episode_table import PAPER_NAMES, table_rows, write_table
from cli.ppa.recognition import (
    choose_categories,
    parse_numbers,
    refuse_leak,
    seen_novel,
    split_file_option,
    without_paper,
)
from cli.progress import progress

if TYPE_CHECKING:
    from actstore import Split
    from actstore.storage.place import Place
    from predictor.protocol.episodes import EpisodeResult, Examples
    from predictor.protocol.method import EpisodeMethod
    from predictor.protocol.tasks import TaskSize

METHODS = ("nearest-neighbour", "class-mean", "imprinting", "fine-tuned")
POOLED = ("train", "val", "test")  # of these, all that there are; the backbone saw no novel class in any of them
FEW_QUERIES = 15  # the usual number where images are scored anew in every task
Run = tuple["Examples", "list[EpisodeMethod]"]  # methods that read the same examples


@click.command(
    epilog=example(
        "ppa episodes --store mini.zarr --split-file miniimagenet-split.json --phi runs/phi1 --phi runs/phi2",
        "ppa episodes --store mini.zarr --shots 1,5 --tasks 2000 --out table.md",
        "ppa episodes --images mini.tar --split-file split.json --learner runs/maml --queries 15",
    )
)
@store_option("The activation store.  [default: as elsewhere]")
@split_file_option
@click.option("--split", "splits", help="Splits whose rows are pooled.  [default: all there are of train,val,test]")
@click.option("--way", type=click.IntRange(2), default=5, show_default=True, help="Categories of a task.")
@click.option("--shots", default="1,5", show_default=True, help="Examples of each category; several with commas.")
@click.option("--tasks", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--queries", type=click.IntRange(1), help="Of each category.  [default: all, or 15 with --learner]")
@click.option("--methods", default=",".join(METHODS), show_default=True, help="With commas; none for no such method.")
@click.option("--phi", "phis", multiple=True, type=click.Path(path_type=Path), help="A run of `ppa train`; repeatable.")
@click.option("--images", help="Where the learners' images are, see `ppa baseline`.")
@click.option(
    "--learner", "learners", multiple=True, type=click.Path(path_type=Path),
    help="A run of `ppa baseline` with images, such as maml; repeatable.",
)  # fmt: skip
@device_option(help_="Of the learners: auto, cpu, cuda or mps.")
@seed_option
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write it: .md, .csv or .json.")
@json_option
def episodes(
    store: Place | None, split_file: Path | None, splits: str | None, way: int, shots: str, tasks: int,
    queries: int | None, methods: str, phis: tuple[Path, ...], images: str | None, learners: tuple[Path, ...],
    device: str, seed: int, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure recognisers on N-way K-shot tasks of the novel categories (C_few), beside the paper's table.

    Every method gets the same tasks, a function of the seed. Accuracy is the mean over tasks, in percent, with its
    95% confidence interval. AUROC: images of known against unknown categories, where half of a task's are withheld.
    """
    from cli.filekinds import TABLES
    from cli.outputs import claim
    from predictor.protocol.tasks import TaskSize

    if learners and images is None:
        raise click.UsageError("--learner reads images: say where they are with --images")
    if learners and queries is None:
        queries = FEW_QUERIES
        click.echo(f"queries: {queries} of each category, as some learners score those of a task together", err=True)
    if out is not None and out.suffix not in TABLES:
        raise click.UsageError(f"--out must end in .md, .csv or .json, got {out}")
    if out is not None:
        claim((out, TABLES[out.suffix]), inputs=[store, split_file, *phis, *learners])
    sizes = [TaskSize(way, count, queries) for count in parse_numbers("--shots", shots)]
    runs: list[Run] = []
    warning, lacking, backbone = None, None, None
    if store is not None or images is None:
        pooled, novel, warning = _open(find_store(store), split_file, splits)
        backbone, lacking = pooled[0].spec.provenance.get("backbone"), without_paper(pooled[0])
        runs.append(
            _activations(pooled, novel, [*_plain_methods(pooled[0], novel, methods), *_phis(pooled[0], novel, phis)])
        )
    runs += _image_runs(images, learners, split_file, splits, device)
    rows = table_rows(_measure(runs, sizes, tasks, seed), sizes, PAPER_NAMES.get(str(backbone)), lacking is None)
    warning = "\n".join(filter(None, (warning, lacking))) or None
    if warning:
        click.echo(warning, err=True)
        rows = [{**row, "warning": warning} for row in rows]
    if out is not None:
        write_table(out, rows, sizes)
    emit(rows, as_json, lambda: _text(rows, sizes, tasks, warning))


def _measure(runs: Sequence[Run], sizes: Sequence[TaskSize], tasks: int, seed: int) -> list[EpisodeResult]:
    from predictor.protocol.episodes import run_episodes

    with progress("episodes", len(runs) * len(sizes) * tasks, "tasks") as bar:
        return [
            result
            for examples, methods in runs
            for size in sizes
            for result in run_episodes(methods, examples, size, tasks, seed, bar.update)
        ]


def _open(path: Place, split_file: Path | None, named: str | None) -> tuple[list[Split], tuple[str, ...], str | None]:
    """The splits whose rows are pooled, the novel categories, and a warning if the backbone has seen some."""
    import actstore

    store = actstore.open(path)
    categories = choose_categories(split_file, store.classes)
    if not categories.novel:
        raise click.UsageError("the split names no novel category to make tasks of")
    pooled = [store[name] for name in _pooled(store.splits, named)]
    return pooled, categories.novel, seen_novel(pooled[0], categories)


def _pooled(have: Mapping[str, Any], named: str | None) -> list[str]:
    chosen = named.split(",") if named else [name for name in POOLED if name in have]
    if not chosen:
        raise click.UsageError(f"choose splits with --split: {', '.join(have) or 'there are none yet'}")
    return chosen


def _activations(pooled: Sequence[Split], novel: Sequence[str], methods: list[EpisodeMethod]) -> Run:
    from predictor.protocol.episodes import gather_classes

    if not methods:
        raise click.UsageError("nothing to measure: name --methods, --phi or --learner")
    return gather_classes(pooled, novel), methods


def _plain_methods(split: Split, novel: Sequence[str], named: str) -> list[EpisodeMethod]:
    """Those that need no training of their own. A task has no base categories: any one class stands in for them."""
    from baselines.class_mean import ClassMean
    from baselines.finetune_episode import FinetunedEpisode
    from baselines.imprint import Imprint
    from baselines.nearest_neighbour import NearestNeighbour
    from predictor.protocol.episodes import Independent

    def imprint() -> EpisodeMethod:
        method = Imprint(split, novel[:1])
        method.name = "Imprinting"  # a task has no base rows to speak of
        return Independent(method)

    make: dict[str, Callable[[], EpisodeMethod]] = {
        "nearest-neighbour": lambda: Independent(NearestNeighbour(split, novel[:1], name="Nearest Neighbor")),
        "class-mean": lambda: Independent(ClassMean(split, novel[:1])),
        "imprinting": imprint,
        "fine-tuned": FinetunedEpisode,
    }
    chosen = [] if named == "none" else named.split(",")
    if unknown := [name for name in chosen if name not in make]:
        raise click.UsageError(f"no method {unknown[0]!r}; known: {', '.join(METHODS)}, none")
    return [make[name]() for name in chosen]


def _phis(split: Split, novel: Sequence[str], runs: Sequence[Path]) -> list[EpisodeMethod]:
    """As in the authors' code: phi of the mean of the examples."""
    import torch

    from predictor.phi.recogniser import PredictedParameters
    from predictor.protocol.episodes import Independent
    from predictor.training.trained_phi import load_phi

    methods: list[EpisodeMethod] = []
    for run in runs:
        trained = load_phi(run)
        trained.require_store(split)
        refuse_leak(run, trained.categories.base, novel)
        method = PredictedParameters(trained.phi, torch.empty(0, split.dim), aggregate="mean")
        methods.append(Independent(method))
    return methods


def _image_runs(
    images: str | None, learners: Sequence[Path], split_file: Path | None, splits: str | None, device: str
) -> list[Run]:
    """One run per learner, as each may see images of another size, or embeddings of its own."""
    if images is None or not learners:
        return []
    from actstore.compute.device import parse_device
    from actstore.images.opening import open_images
    from baselines.image_tasks import decode_classes
    from baselines.meta_training import read_learner

    sets = open_images(images)
    sets = {name: sets[name] for name in _pooled(sets, splits)}
    names = sorted({name for one in sets.values() for name in one.classes})
    novel = choose_categories(split_file, names).novel
    decoded: dict[int, Examples] = {}
    runs: list[Run] = []
    for folder in learners:
        learner, trained = read_learner(folder, parse_device(device))
        refuse_leak(folder, trained.identity["source"]["classes"], novel)
        size = learner.transform.crop
        if size not in decoded:
            decoded[size] = decode_classes(sets, novel, size)
        examples, method = learner.prepared(decoded[size])
        runs.append((examples, [method]))
    return runs


def _text(rows: list[dict[str, Any]], sizes: Sequence[TaskSize], tasks: int, warning: str | None) -> str:
    from cli.ppa.episode_table import markdown

    what = f"{sizes[0].way}-way accuracy in %, ± 95% confidence interval over {tasks:,} tasks"
    return "\n".join(filter(None, [markdown(rows, sizes), what, warning]))
