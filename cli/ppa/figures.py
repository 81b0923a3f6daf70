"""`ppa figures`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from cli.group import emit, example, json_option
from cli.options import FILE, FOLDER
from cli.outputs import claim_folder
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
@click.option("--bench", type=FILE, help="What `ppa bench-inference --json` printed.")
@click.option("--out", type=FOLDER, help="[default: RUN_FOLDER/figures]")
@json_option
def figures(
    run_folder: Path, store: Place | None, train_split: str, test_split: str | None, phis: tuple[Path, ...],
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
    drawn = draw_run(run, folder, train_split, test_split, lambda name: click.echo(f"drawing {name}", err=True))
    result = {
        "folder": str(folder),
        "figures": {figure.name: str(figure.path) for figure in drawn if figure.path is not None},
        "skipped": {figure.name: figure.why for figure in drawn if figure.path is None},
    }
    emit(result, "\n".join(
        f"{figure.path} and .svg" if figure.path is not None else f"{figure.name}: skipped, {figure.why}"
        for figure in drawn
    ))  # fmt: skip
