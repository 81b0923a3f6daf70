"""`ppa sessions`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.group import emit, example, json_option
from cli.options import chart_option, seed_option, store_option
from cli.ppa.constants import without_fitted_rows
from cli.ppa.evaluate import agreed_categories, baselines, calibrations_of, predictors
from cli.ppa.recognition import (
    require_test_split,
    say_means_are_computed,
    seen_novel,
    split_file_option,
    trained_on_novel,
)
from cli.progress import progress

if TYPE_CHECKING:
    from actstore.storage.place import Place
    from cli.ppa.evaluate import Contestant
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
@store_option(find=True)
@click.option("--phi", "phis", multiple=True, type=click.Path(path_type=Path), help="A run of `ppa train`; repeatable.")
@click.option(
    "--methods",
    default="class-mean",
    show_default=True,
    help="Baselines that train nothing when they learn, with commas: nn, class-mean, imprint, … or none.",
)
@click.option(
    "--head", type=click.Path(path_type=Path, dir_okay=False), help="The backbone's classifier of the base classes."
)
@click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True,
    help="Where `ppa baseline` left its trainings.",
)  # fmt: skip
@split_file_option
@click.option("--split", "train_split", default="train", show_default=True, help="Where examples come from.")
@click.option("--test-split", help="Where test images come from.  [default: val or test]")
@click.option("--way", type=click.IntRange(1), default=5, show_default=True, help="New categories of a session.")
@click.option("--shots", type=click.IntRange(1), default=5, show_default=True, help="Examples of each.")
@click.option("--draws", type=click.IntRange(1), default=10, show_default=True, help="Of the examples.")
@seed_option
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write it: .md, .csv or .json.")
@chart_option
@json_option
def sessions(
    store: Place, phis: tuple[Path, ...], methods: str, head: Path | None, runs: Path, split_file: Path | None,
    train_split: str, test_split: str | None, way: int, shots: int, draws: int, seed: int, out: Path | None,
    chart: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Add the novel categories a few at a time, as few-shot class-incremental learning is measured.

    After each session all test images of the categories known by then compete among all of them: accuracy, and the
    harmonic mean of base and novel accuracy, per session, on average and at the end. With 60 base categories and 8
    sessions of 5 from 5 examples, mini-ImageNet's usual protocol, published methods stand beside them. A backbone
    that was trained on a category of a session is refused.
    """
    import actstore
    from actstore.errors import InvalidInputError
    from actstore.storage.atomic_file import write_atomic
    from cli.filekinds import FIGURE, TABLES
    from cli.outputs import claim
    from predictor.protocol.evaluation import all_way_task
    from predictor.report.session_table import session_rows, to_csv, to_markdown
    from predictor.training.trained_phi import load_phi

    if out is not None and out.suffix not in TABLES:
        raise click.UsageError(f"--out must end in .md, .csv or .json, got {out}")
    if out is not None:
        claim((out, TABLES[out.suffix]), inputs=[store, head, split_file, *phis])
    claim((chart, FIGURE))
    opened = actstore.open(store)
    train, test = opened[train_split], require_test_split(opened, train_split, test_split)
    trained = [load_phi(path) for path in phis]
    categories = agreed_categories(trained, split_file, train)
    added = replace(categories, validation=())  # sessions add no validation category: those may be known
    if seen := trained_on_novel(train, added):
        raise InvalidInputError(
            f"the backbone of {store} was trained on {len(seen):,} of the {len(categories.novel):,} categories that "
            f"sessions add, such as {seen[0]!r}; train one on the base alone with `ppa pretrain --split-file`"
        )
    fits = calibrations_of(trained, methods, runs)
    task, left_out = without_fitted_rows(all_way_task(train, test, categories), fits)
    say_means_are_computed(train)
    contestants = shifted_too(baselines(methods, task, categories, head, runs, seed), shots)
    contestants += predictors(trained, task, "mean", None)
    if not contestants:
        raise click.UsageError("nothing to measure: name a run with --phi, or baselines with --methods")
    warning = "\n".join(filter(None, (seen_novel(train, added), left_out))) or None
    backbone = str(train.spec.provenance.get("backbone") or "not known")
    rows = session_rows(measure(contestants, way, shots, draws, seed), way, shots, backbone, warning)
    text = to_markdown(rows, warning)
    if out is not None:
        written = {".md": text, ".csv": to_csv(rows)}.get(out.suffix) or json.dumps(rows, indent=1)
        write_atomic(out, (written.rstrip("\n") + "\n").encode())
    if chart is not None:
        from predictor.figures.lines import draw_sessions
        from predictor.figures.style import save

        save(draw_sessions(rows), chart)
    emit(rows, as_json, lambda: text)


def shifted_too(contestants: list[Contestant], shots: int) -> list[Contestant]:
    """Each method, and once more with its constant where it has one; with the task on the store that it reads."""
    from predictor.protocol.method import Separable
    from predictor.protocol.sessions import Shifted

    found: list[Contestant] = []
    for method, task in contestants:
        found.append((method, task))
        if isinstance(method, Separable) and method.constants:
            found.append((Shifted(method, shots), task))
    return found


def measure(contestants: list[Contestant], way: int, shots: int, draws: int, seed: int) -> list[SessionResult]:
    from predictor.protocol.sessions import run_sessions

    with progress("sessions", len(contestants) * draws, "draws") as bar:
        return [run_sessions(method, task, way, shots, draws, seed, bar.update) for method, task in contestants]
