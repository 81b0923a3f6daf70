"""`ppa eval`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.group import emit, example, json_option
from cli.options import Place, seed_option, store_option
from cli.outputs import claim_kept_table, claim_table, write_kept, write_table
from cli.ppa.options import (
    STORE_OF_PHI,
    head_option,
    held_out_split_option,
    phis_option,
    runs_option,
    search_options,
    shots_option,
    split_file_option,
    table_option,
    train_split_option,
)
from cli.ppa.recognition import (
    choose_shots,
    is_as_large_as_the_paper,
    require_test_split,
    say_means_are_computed,
    seen_novel,
    store_of,
    without_paper,
)
from cli.progress import progress
from predictor.report.results_folder import TABLE

if TYPE_CHECKING:
    from cli.ppa.contestants import Contestant
    from predictor.protocol.evaluation import Row


@click.command(
    name="eval",
    epilog=example(
        "ppa eval --phi phi1 --phi phi2",
        "ppa eval --phi runs/phi2 --methods all --head resnet50-900/best.safetensors --draws 50 --out table.md",
        "ppa eval --base head --head resnet50-900/best.safetensors --methods none",
        "ppa eval --methods nn --shots 1,5 --json",
    ),
)
@store_option(STORE_OF_PHI)
@phis_option
@click.option(
    "--methods", default="nn,class-mean", show_default=True,  # these need neither training nor a classifier file
    help="Baselines, with commas: nn, class-mean, simple-shot, imprint, triplet, child, oracle, …; all or none.",
)  # fmt: skip
@click.option(
    "--base", type=click.Choice(["head"]),
    help="head: also the network's own classifier as base, centred examples beside it, as it is and calibrated.",
)  # fmt: skip
@head_option(
    "The backbone's classifier of the base classes, for --base head (default: that of the store's own network), "
    "imprint, finetune and child."
)
@runs_option()
@split_file_option
@train_split_option("Where support comes from.")
@held_out_split_option()
@shots_option
@click.option("--draws", type=click.IntRange(1), default=20, show_default=True, help="Of the support.")
@click.option(
    "--aggregate", type=click.Choice(["max", "mean"]), default="max", show_default=True,
    help="Of a category's examples by phi: the highest score counts, or phi of their mean.",
)  # fmt: skip
@click.option(
    "--novel-bias", type=float, help="Added to phi's novel scores.  "
    "[default: none, and calibrated rows beside it where `ppa calibrate` was run]",
)  # fmt: skip
@click.option(
    "--wide", is_flag=True, help="Print all figures: top-5, joint, delta, AUROC, differences on the same draws."
)
@search_options
@seed_option
@table_option
@json_option
def evaluate(
    store: Place | None, phis: tuple[Path, ...], methods: str, base: str | None, head: Path | None, runs: Path,
    split_file: Path | None, train_split: str, test_split: str | None, shots: str | None, draws: int, aggregate: Any,
    novel_bias: float | None, wide: bool, search: str, device: str, seed: int, out: Path | None,
) -> None:  # fmt: skip
    """All-way accuracy on base and novel categories: every method on the same support draws, beside the paper.

    Means over draws with 95% confidence intervals. The paper's figures, of 1000-way ImageNet, stand beside them where
    there are as many categories. The table with all figures is kept in results/table.json, where `ppa report` and `ppa
    figures` find it, unless --out is a .json.
    """
    if shots is not None:
        choose_shots(shots)  # before anything is read
    kept = claim_kept_table(out, TABLE)
    claim_table(out, [store, head, split_file, *phis])
    import actstore
    from actstore.search.leading import SearchChoice
    from cli.ppa import contestants as entrants
    from cli.ppa.leaks import named_leaks
    from cli.ppa.own_classifier import fit_own, read_own
    from predictor.protocol.evaluation import all_way_task
    from predictor.report.all_way_table import records, to_csv, to_markdown, to_text
    from predictor.training.trained_phi import load_phi

    trained = [load_phi(path) for path in phis]
    opened = actstore.open(store_of(store, trained))
    train, test = opened[train_split], require_test_split(opened, train_split, test_split)
    categories = entrants.agreed_categories(trained, split_file, train)
    counts = choose_shots(shots, train, categories.novel)
    own = None if base is None else read_own(head, categories, train)
    own_fits = [] if own is None or novel_bias is not None else fit_own(own, opened, train, categories, counts, seed)
    fits = [*entrants.calibrations_of(trained, methods, runs, train, categories), *own_fits]
    task, left_out = entrants.without_fitted_rows(all_way_task(train, test, categories), fits)
    if trained or methods != "nn":  # nearest neighbours alone need no means
        say_means_are_computed(train)
    contestants = [
        *entrants.baselines(methods, task, categories, head, runs, seed, SearchChoice(search, device)),
        *entrants.predictors(trained, task, aggregate, novel_bias),
        *([] if own is None else entrants.own_classifiers(own, task, own_fits)),
    ]
    if not contestants:
        raise click.UsageError("nothing to measure: name a run with --phi, --base head, or baselines with --methods")
    rows = measure(contestants, counts, draws, seed)
    lacking = without_paper(train)
    if lacking or not is_as_large_as_the_paper(categories):
        rows = [replace(row, is_beside_paper=False) for row in rows]
    said = (seen_novel(train, categories), named_leaks(opened, task, counts, draws, seed), lacking, left_out)
    warning = "\n".join(filter(None, said)) or None
    markdown, lines = to_markdown(rows, warning), records(rows, warning)
    write_table(out, lines, markdown, to_csv(rows, warning))
    write_kept(kept, lines)
    emit(lines, markdown if wide else to_text(rows, warning))


def measure(contestants: list[Contestant], shots: list[int], draws: int, seed: int) -> list[Row]:
    """Rows by number of shots, then in the order of the methods; those that take no support at the end."""
    from predictor.protocol.evaluation import evaluate, plan_draws

    total = sum(len(numbers) for method, _ in contestants for numbers in plan_draws(method, shots, draws).values())
    rows: list[Row] = []
    with progress("eval", total, "draws") as bar:
        for method, task in contestants:
            bar.set_postfix_str(f"{method.name} {method.share}", refresh=False)
            rows += evaluate(method, task, shots, draws, seed, bar.update)
    order = [*map(str, shots), "all"]
    return sorted(rows, key=lambda row: order.index(row.shots))
