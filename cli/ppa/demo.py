"""`ppa demo`."""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.filekinds import BENCH, STEPS
from cli.group import emit, example, json_option
from cli.options import FOLDER, wait_without_spinning
from cli.outputs import claim
from cli.ppa.demo_steps import FULL, QUICK, Size, Step, plan_demo

if TYPE_CHECKING:
    from cli.ppa.demo_record import Record


@click.command(
    epilog=example("ppa demo", "ppa demo --quick", "ppa demo --photos my-photos/", "ppa demo --out somewhere --json"),
)
@click.option("--quick", is_flag=True, help="Fewer categories, images and steps: about a minute.")
@click.option("--photos", type=FOLDER,
              help="On your own photos, PHOTOS/CATEGORY/*.jpg: 1, 3 and 5 of each teach the rest.")  # fmt: skip
@click.option("--out", type=FOLDER, help="[default: demo-out, demo-out/quick or demo-out/photos]")
@json_option
def demo(quick: bool, photos: Path | None, out: Path | None) -> None:
    """Everything, on the embedded glyphs: backbone, store, phi, baselines, tables, figures and one HTML report. Or
    what a pretrained network makes of your own photos.

    Needs no download. Interrupted or repeated, it goes on where it was; steps that are up to date are skipped. What
    is not up to date is made again, so keep nothing of your own in the files it writes.
    """
    if photos is not None and quick:
        raise click.UsageError("--quick belongs to the glyphs; --photos takes as long as the photos do")
    wait_without_spinning()  # spinning made the backbone's training on a busy machine ten times slower
    if photos is not None:
        from cli.ppa.demo_photos import describe_photos, run_photo_demo

        shown = run_photo_demo(photos, out or Path("demo-out/photos"))
        emit(shown, describe_photos(shown))
        return
    run = run_demo(out or Path("demo-out/quick" if quick else "demo-out"), QUICK if quick else FULL)
    emit(run, describe(run))


def run_demo(folder: Path, size: Size) -> dict[str, Any]:
    """All steps; their output goes to stderr, as it is the progress of this command."""
    from cli.ppa.demo_record import Record

    steps = plan_demo(folder, size)
    claim((folder / "steps.json", STEPS))
    record = Record(folder / "steps.json")
    began = time.monotonic()
    ran = [
        step.name
        for number, step in enumerate(steps, 1)
        if perform(step, record, f"[{number}/{len(steps)}] {step.title}")
    ]
    return {
        "folder": str(folder),
        "report": str((folder / "report.html").resolve()),
        "ran": ran,
        "steps": len(steps),
        "seconds": time.monotonic() - began,
    }


def perform(step: Step, record: Record, head: str) -> bool:
    """Run a step and record it. False where it is up to date, or an optional one failed; both are said."""
    from actstore.errors import ActstoreError
    from actstore.storage.atomic_file import as_utf8, write_atomic

    if record.is_done(step):
        click.echo(f"{head}: up to date", err=True)
        return False
    click.secho(head, err=True, bold=True)
    click.echo(f"$ {shlex.join(step.words)}", err=True)
    claim((step.printed, BENCH))
    entry = record.begin(step)
    began = time.monotonic()
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown if step.printed else sys.stderr):
            call(step.words)
        if step.printed:
            write_atomic(step.printed, as_utf8(shown.getvalue()))
    except (ActstoreError, click.ClickException) as error:
        if not step.optional:
            raise
        record.forget(step)
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        click.echo(f"left out: {text}", err=True)
        return False
    finally:
        entry.seconds += time.monotonic() - began
        record.save()
    entry.done = True
    record.save()
    click.echo(f"  {entry.seconds:.1f} s\n", err=True)
    return True


def call(words: tuple[str, ...]) -> None:
    """A command of `ppa` or `actstore` in this process, parsed as if it had been typed."""
    from cli.actstore import main as actstore_main
    from cli.ppa import main as ppa_main

    tool, name, *arguments = words
    command = {"ppa": ppa_main, "actstore": actstore_main}[tool].commands[name]
    with command.make_context(f"{tool} {name}", list(arguments)) as context:
        command.invoke(context)


def describe(run: dict[str, Any]) -> str:
    skipped = run["steps"] - len(run["ran"])
    what = f"{len(run['ran'])} steps run" + (f", {skipped} were up to date or left out" if skipped else "")
    if not run["ran"]:
        what = "everything was up to date"
    return f"{what}; {run['seconds']:.0f} s\nreport: {run['report']}"
