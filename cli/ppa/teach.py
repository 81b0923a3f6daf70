"""`ppa teach`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from cli.group import emit, example, json_option
from cli.options import FILE, FOLDER, PATH, device_option
from cli.ppa.options import PHI_RUN
from cli.ppa.start_options import StartOptions
from cli.row_options import fetching_options
from cli.stores import STORE, cache_options

SESSION = Path("teach-session")


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
    asked = {key: value for key, value in start.items() if value}
    if asked:
        StartOptions(**asked, weights=weights, offline=offline)  # refuses what does not go together
    from predictor.teach import OtherStartError, begin_session

    def make(chosen: Mapping[str, Any]) -> Any:
        return StartOptions(**chosen, weights=weights).make_classifier()

    try:
        begin_session(session, asked, make, offline)
    except OtherStartError as error:
        raise click.UsageError(str(error)) from None
    from predictor.teach import serve, write_opening  # once it is known that the server is installed

    def opened(address: str, service: Any) -> None:
        result = {"address": address, "session": str(session), "categories": len(service.session.state.categories)}
        emit(result, f"{session}: {address}\nCtrl-C ends it; nothing is lost")
        sys.stdout.flush()
        if not no_browser:
            click.launch(str(write_opening(session, address)))

    serve(session, host, port, weights, device, opened)
