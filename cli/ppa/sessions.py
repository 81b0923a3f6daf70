"""`ppa sessions`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.filekinds import FIGURE
from cli.group import emit, example, json_option
from cli.options import Place, chart_option, seed_option, store_option
from cli.outputs import claim, claim_table, write_table
from cli.ppa.options import (
    STORE_OF_PHI,
    head_option,
    held_out_split_option,
    phis_option,
    runs_option,
    search_options,
    split_file_option,
    table_option,
    train_split_option,
)
from cli.ppa.recognition import require_test_split, say_means_are_computed, seen_novel, store_of, trained_on_novel
from cli.progress import progress

if TYPE_CHECKING:
    from cli.ppa.contestants import Contestant
    from predictor.protocol.sessions import SessionResult


@click.command(
    epilog=example(
        "ppa split --store mini.zarr --novel-share 0.4 --out sixty.json      # the usual 60 base categories, 40 novel",
        "ppa pretrain mini.tar --split-file sixty.json --flip --out sixty",
        "actstore build mini.tar sixty.zarr --backbone small --weights sixty/best.safetensors",
        "ppa train --phi phi2 --store sixty.zarr --split-file sixty.json && ppa calibrate --phi runs/phi2 --shots 5",
        "ppa sessions --store sixty.zarr --phi runs/phi2 --chart sessions.png",
    )
)
@store_option(STORE_OF_PHI)
@phis_option
@click.option(
    "--methods", default="class-mean", show_default=True,
    help="Baselines that train nothing when they learn, with commas: nn, class-mean, simple-shot, imprint, … or none.",
)  # fmt: skip
@head_option()
@runs_option()
@split_file_option
@train_split_option("Where examples come from.")
@held_out_split_option()
@click.option("--way", type=click.IntRange(1), default=5, show_default=True, help="New categories of a session.")
@click.option("--shots", type=click.IntRange(1), default=5, show_default=True, help="Examples of each.")
@click.option("--draws", type=click.IntRange(1), default=10, show_default=True, help="Of the examples.")
@search_options
@seed_option
@table_option
@chart_option
@json_option
def sessions(
    store: Place | None, phis: tuple[Path, ...], methods: str, head: Path | None, runs: Path, split_file: Path | None,
    train_split: str, test_split: str | None, way: int, shots: int, draws: int, search: str, device: str,
    seed: int, out: Path | None, chart: Path | None,
) -> None:  # fmt: skip
    """Add the novel categories a few at a time, as few-shot class-incremental learning is measured.

    After each session all test images of the categories known by then compete among all of them: accuracy, and the
    harmonic mean of base and novel accuracy, per session, on average and at the end. With 60 base categories and 8
    sessions of 5 from 5 examples, mini-ImageNet's usual protocol, published methods stand beside them. A backbone
    that was trained on a category of a session is refused.
    """
    claim_table(out, [store, head, split_file, *phis])
    claim((chart, FIGURE))
    import actstore
    from actstore.errors import InvalidInputError
    from actstore.search.leading import SearchChoice
    from cli.ppa import contestants as entrants
    from predictor.protocol.evaluation import all_way_task
    from predictor.report.session_table import session_rows, to_csv, to_markdown
    from predictor.training.trained_phi import load_phi

    trained = [load_phi(path) for path in phis]
    opened = actstore.open(store_of(store, trained))
    train, test = opened[train_split], require_test_split(opened, train_split, test_split)
    categories = entrants.agreed_categories(trained, split_file, train)
    added = replace(categories, validation=())  # sessions add no validation category: those may be known
    if seen := trained_on_novel(train, added):
        raise InvalidInputError(
            f"the backbone of {opened.path} was trained on {len(seen):,} of the {len(categories.novel):,} categories "
            f"that sessions add, such as {seen[0]!r}; train one on the base alone with `ppa pretrain --split-file`"
        )
    fits = entrants.calibrations_of(trained, methods, runs, train, categories)
    task, left_out = entrants.without_fitted_rows(all_way_task(train, test, categories), fits)
    say_means_are_computed(train)
    untrained = entrants.baselines(methods, task, categories, head, runs, seed, SearchChoice(search, device))
    contestants = [*entrants.shifted_too(untrained, shots), *entrants.predictors(trained, task, "mean", None)]
    if not contestants:
        raise click.UsageError("nothing to measure: name a run with --phi, or baselines with --methods")
    warning = "\n".join(filter(None, (seen_novel(train, added), left_out))) or None
    backbone = str(train.spec.provenance.get("backbone") or "not known")
    rows = session_rows(measure(contestants, way, shots, draws, seed), way, shots, backbone, warning)
    text = to_markdown(rows, warning)
    write_table(out, rows, text, to_csv(rows))
    if chart is not None:
        from predictor.figures.lines import draw_sessions
        from predictor.figures.style import save

        save(draw_sessions(rows), chart)
    emit(rows, text)


def measure(contestants: list[Contestant], way: int, shots: int, draws: int, seed: int) -> list[SessionResult]:
    from predictor.protocol.sessions import run_sessions

    with progress("sessions", len(contestants) * draws, "draws") as bar:
        return [run_sessions(method, task, way, shots, draws, seed, bar.update) for method, task in contestants]
