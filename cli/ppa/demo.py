"""`ppa demo`."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
from pathlib import Path

import click

from cli.group import emit, example, json_option
from cli.options import FOLDER, wait_without_spinning
from cli.outputs import claim
from cli.ppa.demo_steps import FULL, QUICK, Step, plan_demo


@click.command(epilog=example("ppa demo", "ppa demo --quick", "ppa demo --out somewhere --json"))
@click.option("--quick", is_flag=True, help="Fewer categories, images and steps: about two minutes.")
@click.option("--out", type=FOLDER, help="[default: demo-out or demo-out/quick]")
@json_option
def demo(quick: bool, out: Path | None) -> None:
    """Everything, on the embedded glyphs: backbone, store, phi, baselines, tables, figures and one HTML report.

    Needs no download. Interrupted or repeated, it goes on where it was; steps whose files are newer than what they are
    made of are skipped. What is not up to date is made again, so keep nothing of your own in the files it writes. For
    your own photos use `ppa check` and `ppa adapt`.
    """
    wait_without_spinning()  # spinning made the backbone's training on a busy machine ten times slower
    folder = out or Path("demo-out/quick" if quick else "demo-out")
    steps, path, began = plan_demo(folder, QUICK if quick else FULL), folder / "steps.json", time.monotonic()
    claim(kept=[path])
    # seconds of every step that a demo in this folder has run, all attempts together
    kept = json.loads(path.read_text("utf-8"))["steps"] if path.exists() else []
    took, ran = {step["name"]: step["seconds"] for step in kept}, list[str]()
    for number, step in enumerate(steps, 1):
        head = f"[{number}/{len(steps)}] {step.title}"
        if step.is_up_to_date():
            click.echo(f"{head}: up to date", err=True)
        elif (seconds := perform(step, head)) is not None:
            ran.append(step.name)
            took[step.name] = took.get(step.name, 0.0) + seconds
        write_steps(path, steps, took)
    seconds, report = time.monotonic() - began, str((folder / "report.html").resolve())
    result = {"folder": str(folder), "report": report, "ran": ran, "steps": len(steps), "seconds": seconds}
    skipped = len(steps) - len(ran)
    what = f"{len(ran)} steps run" + (f", {skipped} were up to date or left out" if skipped else "")
    emit(result, f"{what if ran else 'everything was up to date'}; {seconds:.0f} s\nreport: {report}")


def perform(step: Step, head: str) -> float | None:
    """Run a step, whose output goes to stderr, as it is the progress of this command; how many seconds it took, None
    where an optional one failed, which is said."""
    from actstore import ActstoreError

    click.secho(head, err=True, bold=True)
    words = shlex.split(step.command)
    click.echo(f"$ {shlex.join(words)}", err=True)
    began = time.monotonic()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            call(words)
    except (ActstoreError, click.ClickException) as error:
        if not step.optional:
            raise
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        click.echo(f"left out: {text}", err=True)
        return None
    seconds = time.monotonic() - began
    click.echo(f"  {seconds:.1f} s\n", err=True)
    return seconds


def write_steps(path: Path, steps: list[Step], took: dict[str, float]) -> None:
    """What was run, for the report."""
    from actstore import __version__

    listed = [
        {"name": step.name, "title": step.title, "command": shlex.join(shlex.split(step.command)), "done": True,
         "seconds": took[step.name]}
        for step in steps
        if step.name in took
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": __version__, "steps": listed}, indent=1, ensure_ascii=False), "utf-8")


def call(words: list[str]) -> None:
    """A command of `ppa` or `actstore` in this process, parsed as if it had been typed."""
    from cli.actstore import main as actstore_main
    from cli.ppa import main as ppa_main

    tool, name, *arguments = words
    command = {"ppa": ppa_main, "actstore": actstore_main}[tool].commands[name]
    with command.make_context(f"{tool} {name}", arguments) as context:
        command.invoke(context)
