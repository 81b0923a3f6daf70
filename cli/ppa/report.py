"""`ppa report`."""

from __future__ import annotations

from pathlib import Path

import click

from cli.filekinds import REPORT
from cli.group import emit, example, human_bytes, json_option
from cli.options import FILE, FOLDER, Place
from cli.outputs import claim
from cli.ppa.recognition import seen_novel


@click.command(
    epilog=example(
        "ppa report --folder demo-out --out report.html",
        "ppa report --folder . --title 'ImageNet, ResNet-50 of 900 classes'",
    )
)
@click.option("--folder", type=FOLDER, default=Path(), show_default=True,
              help="Of a run: *.zarr, runs/phi*, table.json, episodes.json, bench-inference.json and figures/."
              )  # fmt: skip
@click.option("--out", type=FILE, help="[default: FOLDER/report.html]")
@click.option("--title", default="New categories from a few examples", show_default=True)
@json_option
def report(folder: Path, out: Path | None, title: str) -> None:
    """One self-contained HTML page of a run: tables beside the paper's, figures, class map, provenance, commands.

    Draw the figures first, with `ppa figures --run-folder FOLDER`.
    """
    from predictor.report.page import write_report
    from predictor.report.run_folder import find_run

    run = find_run(folder)
    if not run.phis and run.table is None:
        raise click.UsageError(f"{folder} holds neither runs/phi* nor table.json; there is nothing to report")
    target = out or folder / "report.html"
    claim((target, REPORT))
    write_report(run, target, title, warning_of(run.store, run.phis))
    size = target.stat().st_size
    emit({"report": str(target), "bytes": size}, f"{target}: {human_bytes(size)}, open it in a browser")


def warning_of(store: Place | None, phis: tuple[Path, ...]) -> str | None:
    """Where the backbone has seen a novel class."""
    import actstore
    from predictor.training.trained_phi import load_phi

    if store is None or not phis:
        return None
    opened = actstore.open(store)
    categories = load_phi(phis[0]).categories
    return next((text for name in opened.splits if (text := seen_novel(opened[name], categories))), None)
