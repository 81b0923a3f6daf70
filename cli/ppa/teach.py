"""`ppa teach`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from cli.group import emit, example, json_option
from cli.networks import choose_default, fetching_options
from cli.options import FILE, FOLDER, PATH, device_option
from cli.ppa.options import CLASSIFIER_FILE, PHI_RUN
from cli.ppa.start_options import Start
from cli.stores import STORE, cache_options

SESSION = Path("teach-session")
SHOTS = (1, 5)  # numbers of examples that a constant is fitted for, where it was not before


@click.command(
    epilog=example(
        "ppa teach",
        "ppa teach --backbone efficientnet-lite0 --keep-known",
        "ppa teach --phi demo-out/quick/runs/phi2 --store demo-out/quick/glyphs.zarr --session glyph-session",
        "ppa teach --classifier classifier.safetensors --port 9000 --no-browser",
    )
)
@click.option("--classifier", type=FILE, help="Begin with a file of `ppa adapt`.")
@click.option("--phi", type=PHI_RUN, help="Begin with a run of `ppa train`, and --store.")
@click.option("--base", type=click.Choice(["head"]), help="head: begin with the own classifier of a store's network.")
@click.option("--store", type=STORE, help="Of phi's base categories.  [default: the one phi was trained on]")
@click.option("--backbone", help="Begin with a network that has weights of its own, such as efficientnet-lite0.")
@click.option("--keep-known", is_flag=True, help="With --backbone: beside the categories that the network knows.")
@fetching_options
@click.option("--session", type=FOLDER, default=SESSION, show_default=True,
              help="The folder that keeps everything; one that is there goes on.")  # fmt: skip
@click.option("--weights", type=PATH, help="The network's weights, where they have moved.")
@device_option(help_="Of the network: auto, cpu, cuda, cuda:1, mps or xpu.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Another address lets other machines in.")
@click.option("--port", type=click.IntRange(0, 65_535), help="[default: 8777, or a free one]")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@cache_options
@json_option
def teach(
    session: Path, weights: Path | None, device: str, host: str, port: int | None, no_browser: bool, offline: bool,
    **start: Any,
) -> None:  # fmt: skip
    """Open a local page on which a network is taught by showing it things.

    Begins with --classifier, --phi, --base head or --backbone; with none of them, with what is in this folder, else
    with a network: resnet50 if it is at hand or can be fetched, else efficientnet-lite0. Every
    action is on disk before it is answered: end it with Ctrl-C, or in any other way, and the same command goes on.
    """
    begin_session(session, weights, {key: value for key, value in start.items() if value}, offline)
    from predictor.teach.limits import Limits
    from predictor.teach.serving import serve
    from predictor.teach.session import write_opening

    def opened(address: str, desk: Any) -> None:
        result = {"address": address, "session": str(session), "categories": len(desk.session.state.categories)}
        emit(result, f"{session}: {address}\nCtrl-C ends it; nothing is lost")
        sys.stdout.flush()
        if not no_browser:
            click.launch(str(write_opening(session, address)))

    serve(session, host, port, weights, device, Limits(), opened)


def begin_session(session: Path, weights: Path | None, asked: dict[str, Any], offline: bool = False) -> None:
    """Make the session's folder, unless it is there; then what is asked for must be what it began with.

    asked: fields of `Start`, or nothing.
    """
    if asked:
        Start(**asked, weights=weights, offline=offline)  # refuses what does not go together
    require_server()
    from cli.ppa.starting import begin
    from predictor.teach.session import create_session, is_session, read_about

    if is_session(session):
        began = read_about(session)["began"]["asked"]
        if asked and {key: str(value) for key, value in asked.items()} != began:
            was = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in began.items())
            raise click.UsageError(f"{session} began with {was}; say the same or nothing, or choose another --session")
        return
    asked = asked or find_start(offline)
    beginning = begin(Start(**asked, weights=weights))
    fits = {fit.shots: fit for shots in SHOTS for fit in beginning.calibrations(shots)}
    create_session(session, beginning.classifier, {
        "asked": {key: str(value) for key, value in asked.items()}, "beside_known": beginning.beside_known,
        "fits": [(shots, fit.aggregate, fit.novel_bias) for shots, fit in sorted(fits.items())],
    })  # fmt: skip


def require_server() -> None:
    from importlib.util import find_spec

    from actstore.errors import InvalidInputError

    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise InvalidInputError(f"`ppa teach` needs {' and '.join(missing)}: pip install 'actstore[teach]'")


def find_start(offline: bool = False) -> dict[str, Any]:
    """What this folder offers: a classifier, a phi and its store, else a network."""
    from actstore.storage.place import stores_in

    if CLASSIFIER_FILE.is_file():
        return {"classifier": CLASSIFIER_FILE}
    stores = stores_in(Path())
    runs = [run for name in ("phi2", "phi1", "phi2star") if (run := Path("runs") / name).is_dir()]
    if len(stores) == 1 and runs:
        return {"phi": runs[0], "store": stores[0]}
    return {"backbone": choose_default(offline).name}
