"""Arguments and options that several commands take."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from actstore import ActivationStore, Split
    from actstore.storage.chunk_cache import CacheSpec
    from actstore.storage.place import Place

STORE_HELP = "The activation store.  [default: $ACTSTORE, or the one *.zarr in this folder]"
Command = TypeVar("Command", bound=Callable[..., Any])


class StoreType(click.ParamType[Any]):
    """A path, or a URL such as s3://BUCKET/NAME with the cache that --cache or $ACTSTORE_CACHE names."""

    name = "store"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        from actstore.storage.place import parse_place

        return parse_place(value, _cache({} if ctx is None else ctx.meta))


STORE = StoreType()


class Percent(click.ParamType[float]):
    """2% or 2."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            found = float(str(value).strip().removesuffix("%"))
        except ValueError:
            found = -1.0
        if not 0 <= found <= 100:
            self.fail(f"expected a share such as 2%, from 0% to 100%, got {value!r}", param, ctx)
        return found


PERCENT = Percent()


def _cache(given: Mapping[str, Any]) -> CacheSpec | None:
    from actstore.storage.chunk_cache import DEFAULT_LIMIT, CacheSpec, parse_size

    folder = given.get("actstore.cache") or os.environ.get("ACTSTORE_CACHE")
    size = given.get("actstore.cache_size") or os.environ.get("ACTSTORE_CACHE_SIZE")
    return None if not folder else CacheSpec(Path(folder), DEFAULT_LIMIT if not size else parse_size(size))


def cache_options(command: Command) -> Command:
    """--cache and --cache-size, which a store given as a URL takes up."""

    def remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        ctx.meta[f"actstore.{param.name}"] = value

    for option in (
        click.option("--cache-size", metavar="SIZE", is_eager=True, expose_value=False, callback=remember,
                     help="What the cache may hold, such as 20G.  [default: $ACTSTORE_CACHE_SIZE, or 100G]"),
        click.option("--cache", metavar="DIR", is_eager=True, expose_value=False, callback=remember,
                     help="Keep chunks of a remote store here, and map them.  [default: $ACTSTORE_CACHE, or none]"),
    ):  # fmt: skip
        command = option(command)
    return command


def store_argument(command: Command) -> Command:
    """STORE, by default $ACTSTORE or the one *.zarr in the current folder; with --cache and --cache-size."""
    argument = click.argument(
        "store", required=False, type=STORE, callback=lambda _ctx, _param, value: find_store(value)
    )
    return argument(cache_options(command))


def store_option(help_: str = STORE_HELP, find: bool = False) -> Callable[[Command], Command]:
    """--store, with --cache and --cache-size. find: by default $ACTSTORE or the one *.zarr in the current folder."""
    callback = (lambda _ctx, _param, value: find_store(value)) if find else None

    def decorate(command: Command) -> Command:
        return click.option("--store", type=STORE, callback=callback, help=help_)(cache_options(command))

    return decorate


def device_option(
    default: str = "auto", help_: str | None = None, names: Sequence[str] = ()
) -> Callable[[Command], Command]:
    """--device, which actstore.compute.device.parse_device understands. names: the only ones that make sense here."""
    what = help_ or (None if names else "auto, cpu, cuda or mps.")
    choice = click.Choice(names) if names else str
    return click.option("--device", type=choice, default=default, show_default=True, help=what)


def weights_option(help_: str = "The backbone's weights, where they have moved.") -> Callable[[Command], Command]:
    return click.option("--weights", type=click.Path(path_type=Path), help=help_)


def on_error_option(
    default: str = "fail", help_: str = "What to do with an image that cannot be read."
) -> Callable[[Command], Command]:
    choice = click.Choice(["fail", "skip"])
    return click.option("--on-error", type=choice, default=default, show_default=True, help=help_)


def seed_option(command: Command) -> Command:
    return click.option("--seed", type=click.IntRange(0), default=0, show_default=True)(command)


def find_store(given: Place | None) -> Place:
    if given is not None:
        return given
    if named := os.environ.get("ACTSTORE"):
        return STORE.convert(named, None, click.get_current_context(silent=True))
    from actstore.storage.place import stores_in

    here = stores_in(Path())
    if len(here) == 1:
        return here[0]
    found = f"{len(here)} are here" if here else "none is here"
    raise click.UsageError(f"no STORE given and $ACTSTORE is not set; expected one *.zarr in this folder, {found}")


def split_option(command: Command) -> Command:
    return click.option("--split", help="Which split; by default the only one, or train.")(command)


def filter_options(command: Command) -> Command:
    """Which rows: --class, --glob, --rows; all that are given must hold."""
    for option in (
        click.option("--rows", help="A range such as 0:1000, or a file of row numbers (.npy or text)."),
        click.option(
            "--glob", "path_glob", help="A shell pattern that the image's id must match, such as '*/tench/*'."
        ),
        click.option("--class", "classes", multiple=True, help="A class name; may be given several times."),
    ):
        command = option(command)
    return command


def where_option(command: Command) -> Command:
    """--where, one filter more."""
    help_ = "A condition on columns such as 'area > 0.5 and source in (web, print)'; repeatable."
    return click.option("--where", multiple=True, metavar="CONDITION", help=help_)(command)


def chart_option(command: Command) -> Command:
    """--chart FILE, a picture of the figures."""

    def parse(_ctx: click.Context, _param: click.Parameter, value: Path | None) -> Path | None:
        if value is not None and value.suffix not in (".png", ".svg"):
            raise click.UsageError(f"--chart must end in .png or .svg, got {value}")
        return value

    path = click.Path(path_type=Path, dir_okay=False)
    return click.option("--chart", type=path, callback=parse, help="Also draw bars, .png or .svg.")(command)


def file_options(command: Command) -> Command:
    """What belongs to an array file."""
    path = click.Path(path_type=Path, dir_okay=False)
    for option in (
        click.option("--restart", is_flag=True, help="Discard an interrupted run instead of resuming it."),
        click.option("--split", help="Name of the split to fill.  [default: train, or the names in the file]"),
        click.option("--array", help="Which array of the file, where it holds several."),
        click.option("--columns", type=path, help="Further values of every row: a .csv or .parquet with a row each."),
        click.option("--column", multiple=True, metavar="NAME",
                     help="A column of ARRAY, or of --columns, to keep beside the rows; repeatable."),
        click.option("--classes", type=path, help="Class names, one per line, in the order of the labels."),
        click.option("--ids", type=path, help="Image ids: text, one per line."),
        click.option("--labels", type=path, help="Labels: .npy, or text with one number or class name per line."),
    ):  # fmt: skip
        command = option(command)
    return command


def trained_on_option(command: Command) -> Command:
    """--trained-on: which classes the network behind the rows has seen, where its file does not say."""
    return click.option(
        "--trained-on",
        type=click.Path(path_type=Path, dir_okay=False),
        callback=lambda _ctx, _param, value: None if value is None else read_trained_on(value),
        help="Classes the network was trained on: names, one per line, or a split file (its base). Without it, "
        "tables say that it may have seen the novel categories.",
    )(command)


def read_trained_on(path: Path) -> list[str]:
    """Of a split file the base; of any other text file its lines."""
    from actstore.tables.array_files import read_column
    from actstore.tables.containers import as_text
    from predictor.protocol.category_split import read_split

    return list(read_split(path).base) if path.suffix == ".json" else as_text(read_column(path, "classes"))


def layout_options(command: Command) -> Command:
    """How a new store is laid out on disk: fp16, unless told otherwise."""
    return _layout_options(command, "f2", "fp16 or fp32 on disk.")


def import_layout_options(command: Command) -> Command:
    """As layout_options, but rows keep the type they come in."""
    return _layout_options(command, None, "fp16 or fp32 on disk.  [default: as it comes, f2 for fp16, else f4]")


def _layout_options(command: Command, dtype: str | None, help_: str) -> Command:
    for option in (
        click.option("--shard-inner-rows", type=click.IntRange(0),
                     help="Make chunk files shards of pieces of so many rows; 0: none.  [default: 0, remote: 1]"),
        click.option("--codec", type=click.Choice(["raw", "blosc"]), default="raw", show_default=True,
                     help="raw can be memory-mapped; blosc is a little smaller and much slower at random."),
        click.option("--chunk-rows", type=click.IntRange(1), help="Rows per chunk file.  [default: about 32 MiB]"),
        click.option("--dtype", type=click.Choice(["f2", "f4"]), default=dtype, show_default=dtype is not None,
                     help=help_),
    ):  # fmt: skip
        command = option(command)
    return command


def wait_without_spinning() -> None:
    """To be said before torch is imported: its threads then sleep while they wait. On a machine that does other work
    too, `ppa predict` on 50 photos took 22 s instead of 56, and a third of the processor's time."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def open_split(store: Place, split: str | None) -> Split:
    import actstore

    opened = actstore.open(store)
    return opened[split or default_split(opened)]


def default_split(store: ActivationStore) -> str:
    names = list(store.splits)
    if len(names) == 1:
        return names[0]
    if "train" in names:
        return "train"
    raise click.UsageError(f"choose a split with --split: {', '.join(names) or 'the store has none yet'}")
