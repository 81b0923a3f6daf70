"""`ppa report`."""

from __future__ import annotations

from pathlib import Path

import click

from actstore.progress import note
from cli.group import emit, example, human_bytes, json_option
from cli.options import FILE, FOLDER
from cli.outputs import claim


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
