"""`ppa figures`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.group import emit, example, json_option
from cli.options import store_option
from cli.ppa.recognition import find_test_split

if TYPE_CHECKING:
    from actstore.storage.place import Place
    from predictor.report.drawing import Drawn, Inputs
    from predictor.report.run_folder import RunFolder


@click.command(
    epilog=example(
        "ppa figures --run-folder demo-out",
        "ppa figures --run-folder . --store imagenet.zarr --phi runs/phi1 --phi runs/phi2 --table table.json",
        "ppa figures --run-folder . --head resnet50-900/best.safetensors --bench bench.json --out pictures",
    )
)
@click.option(
    "--run-folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    show_default=True,
    help="Where the inputs that are not named are looked for: *.zarr, runs/phi*, table.json, bench-inference.json, "
    "backbone/best.safetensors.",
)
@store_option("The activation store.")
@click.option("--split", "train_split", default="train", show_default=True)
@click.option("--test-split", help="Of the test images.  [default: val or test]")
@click.option("--phi", "phis", multiple=True, type=click.Path(path_type=Path), help="A run of `ppa train`; repeatable.")
@click.option("--table", type=click.Path(path_type=Path, dir_okay=False), help="The .json that `ppa eval --out` wrote.")
@click.option(
    "--head", type=click.Path(path_type=Path, dir_okay=False), help="The backbone's classifier of the base classes."
)
@click.option(
    "--bench", type=click.Path(path_type=Path, dir_okay=False), help="What `ppa bench-inference --json` printed."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="[default: RUN_FOLDER/figures]")
@json_option
def figures(
    run_folder: Path, store: Place | None, train_split: str, test_split: str | None, phis: tuple[Path, ...],
    table: Path | None, head: Path | None, bench: Path | None, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Draw a run: methods, shots, support sheet, class maps, channels, training and inference; PNG and SVG.

    A figure whose inputs are missing is skipped, and it is said which.
    """
    from dataclasses import replace

    from actstore.errors import InvalidInputError
    from cli.filekinds import CLASS_MAP as MAP
    from cli.filekinds import FIGURE
    from cli.outputs import claim_folder
    from predictor.report.drawing import FIGURES, draw_all
    from predictor.report.run_folder import CLASS_MAP, find_run

    inputs = find_run(run_folder)
    named = {"store": store, "table": table, "head": head, "bench": bench, "phis": phis or None}
    inputs = replace(inputs, **{key: value for key, value in named.items() if value is not None})  # type: ignore[arg-type]
    folder = out or inputs.figures
    drawings = [(name + ending, FIGURE) for name in FIGURES for ending in (".png", ".svg")]
    claim_folder(folder, [*drawings, (CLASS_MAP, MAP)], inputs=[table, head, bench])
    drawn = draw_all(
        open_inputs(inputs, train_split, test_split), folder, lambda name: click.echo(f"drawing {name}", err=True)
    )
    if all(figure.path is None for figure in drawn):
        raise InvalidInputError(
            f"nothing of {run_folder} could be drawn: {'; '.join(f'{figure.name}: {figure.why}' for figure in drawn)}"
        )
    result = {
        "folder": str(folder),
        "figures": {figure.name: str(figure.path) for figure in drawn if figure.path is not None},
        "skipped": {figure.name: figure.why for figure in drawn if figure.path is None},
    }
    emit(result, as_json, lambda: describe(drawn))


def open_inputs(inputs: RunFolder, train_split: str, test_split: str | None) -> Inputs:
    import actstore
    from predictor.report.drawing import Inputs

    train = test = None
    if inputs.store is not None:
        opened = actstore.open(inputs.store)
        train, test = opened[train_split], find_test_split(opened, train_split, test_split)
    return Inputs(inputs.phis, train, test, inputs.head, inputs.table, inputs.bench)


def describe(drawn: list[Drawn]) -> str:
    return "\n".join(
        f"{figure.path} and .svg" if figure.path is not None else f"{figure.name}: skipped, {figure.why}"
        for figure in drawn
    )
