"""`ppa figures` and `ppa report`: what a run has to show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from actstore.progress import note
from cli.group import emit, example, human_bytes, json_option
from cli.options import FILE, FOLDER
from cli.outputs import claim, claim_folder
from cli.ppa.options import head_option, held_out_split_option, phis_option, train_split_option
from cli.stores import Place, store_option


@click.command(
    epilog=example(
        "ppa figures --run-folder demo-out",
        "ppa figures --run-folder . --store imagenet.zarr --phi runs/phi1 --phi runs/phi2 --table table.json",
        "ppa figures --run-folder . --head resnet50-900/best.safetensors --bench bench.json --out pictures",
    )
)
@click.option(
    "--run-folder", type=FOLDER, default=Path(), show_default=True,
    help="Where the inputs that are not named are looked for: *.zarr, runs/phi*, table.json, bench-inference.json, "
    "backbone/best.safetensors.",
)  # fmt: skip
@store_option("The activation store.")
@train_split_option()
@held_out_split_option("Of the test images.  [default: val or test]")
@phis_option
@click.option("--table", type=FILE, help="The .json that `ppa eval --out` wrote.")
@head_option()
@click.option("--bench", type=FILE, help="The .json that `ppa bench-inference --out` wrote.")
@click.option("--out", type=FOLDER, help="[default: RUN_FOLDER/figures]")
@json_option
def figures(
    run_folder: Path, store: Place | None, train: str, test: str | None, phis: tuple[Path, ...],
    table: Path | None, head: Path | None, bench: Path | None, out: Path | None,
) -> None:  # fmt: skip
    """Draw a run: methods, shots, support sheet, class maps, channels, training and inference; PNG and SVG.

    A figure whose inputs are missing is skipped, and it is said which.
    """
    from predictor.report import FIGURE_FILES, draw_run, find_run

    run = find_run(run_folder)
    folder = out or run.figures
    claim_folder(folder, FIGURE_FILES, inputs=[table, head, bench])
    run = replace(run, store=store or run.store, phis=phis or run.phis, head=head or run.head,
                  table=table or run.table, bench=bench or run.bench)  # fmt: skip
    drawn = draw_run(run, folder, train, test, lambda name: click.echo(f"drawing {name}", err=True))
    result = {
        "folder": str(folder),
        "figures": {figure.name: str(figure.path) for figure in drawn if figure.path is not None},
        "skipped": {figure.name: figure.why for figure in drawn if figure.path is None},
    }
    emit(result, "\n".join(
        f"{figure.path} and .svg" if figure.path is not None else f"{figure.name}: skipped, {figure.why}"
        for figure in drawn
    ))  # fmt: skip


@click.command(
    epilog=example(
        "ppa report --folder demo-out --out report.html",
        "ppa report --folder . --title 'ImageNet, ResNet-50 of 900 classes'",
    )
)
@click.option("--folder", type=FOLDER, default=Path(), show_default=True,
              help="Of a run: *.zarr, runs/phi*, figures/, and table.json, episodes.json, bench-inference.json there "
              "or in results/.")  # fmt: skip
@click.option("--out", type=FILE, help="[default: FOLDER/report.html, which needs no --force]")
@click.option("--title", default="New categories from a few examples", show_default=True)
@json_option
def report(folder: Path, out: Path | None, title: str) -> None:
    """One self-contained HTML page of a run: tables beside the paper's, figures, class map, provenance, commands.

    Draw the figures first, with `ppa figures --run-folder FOLDER`. What was not found is said, with the command that
    makes it.
    """
    from predictor.report import find_run, write_report

    run = find_run(folder)
    if not run.phis and run.table is None:
        raise click.UsageError(
            f"{folder} holds neither runs/phi* nor a table of `ppa eval`; there is nothing to report"
        )
    target = out or folder / "report.html"
    claim(out, kept=[] if out else [target])
    write_report(run, target, title)
    size, missing = target.stat().st_size, run.missing()
    if missing:
        note(f"not in the report: {'; '.join(f'{what} (`{command}` makes it)' for what, command in missing.items())}")
    result = {"report": str(target), "bytes": size, "missing": list(missing)}
    emit(result, f"{target}: {human_bytes(size)}, open it in a browser")
