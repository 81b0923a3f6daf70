"""`ppa report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from actstore.progress import note
from cli.group import emit, example, human_bytes, json_option
from cli.options import FILE, FOLDER
from cli.outputs import claim
from cli.stores import Place
from predictor.report.results_folder import BENCH

if TYPE_CHECKING:
    from predictor.report.run_folder import RunFolder


@click.command(
    epilog=example(
        "ppa report --folder demo-out --out report.html",
        "ppa report --folder . --title 'ImageNet, ResNet-50 of 900 classes'",
    )
)
@click.option("--folder", type=FOLDER, default=Path(), show_default=True,
              help="Of a run: *.zarr, runs/phi*, figures/, and table.json, episodes.json, bench-inference.json there "
              "or in results/.")  # fmt: skip
@click.option("--out", type=FILE, help="[default: FOLDER/report.html]")
@click.option("--title", default="New categories from a few examples", show_default=True)
@json_option
def report(folder: Path, out: Path | None, title: str) -> None:
    """One self-contained HTML page of a run: tables beside the paper's, figures, class map, provenance, commands.

    Draw the figures first, with `ppa figures --run-folder FOLDER`. What was not found is said, with the command that
    makes it.
    """
    from predictor.report.page import write_report
    from predictor.report.run_folder import find_run

    run = find_run(folder)
    if not run.phis and run.table is None:
        raise click.UsageError(
            f"{folder} holds neither runs/phi* nor a table of `ppa eval`; there is nothing to report"
        )
    target = out or folder / "report.html"
    claim(out, kept=[] if out else [target])
    write_report(run, target, title, warning_of(run.store, run.phis))
    size, missing = target.stat().st_size, missing_parts(run)
    if missing:
        note(f"not in the report: {'; '.join(f'{what} (`{command}` makes it)' for what, command in missing.items())}")
    result = {"report": str(target), "bytes": size, "missing": list(missing)}
    emit(result, f"{target}: {human_bytes(size)}, open it in a browser")


def missing_parts(run: RunFolder) -> dict[str, str]:
    """What the report says nothing of -> the command that makes it."""
    phis = " ".join(f"--phi {path}" for path in run.phis)
    at = "" if run.folder == Path() else f" --run-folder {run.folder}"
    parts = {
        "a store": (run.store, "actstore build IMAGES/"),
        "a phi": (run.phis, "ppa train --phi phi1"),
        "the table of all methods": (run.table, f"ppa eval {phis}".strip()),
        "N-way tasks": (run.episodes, f"ppa episodes {phis}".strip()),
        "inference times": (run.bench, f"ppa bench-inference --json > {BENCH}"),
        "figures": (run.figures.is_dir(), f"ppa figures{at}"),
    }
    return {what: command for what, (found, command) in parts.items() if not found}


def warning_of(store: Place | None, phis: tuple[Path, ...]) -> str | None:
    """Where the backbone has seen a novel class."""
    import actstore
    from predictor.protocol.honesty import contamination
    from predictor.training.trained_phi import load_phi

    if store is None or not phis:
        return None
    opened = actstore.open(store)
    categories = load_phi(phis[0]).categories
    return next((text for name in opened.splits if (text := contamination(opened[name], categories))), None)
