"""Arguments and options that several commands take."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from actstore import ActivationStore as ActivationStore
    from actstore import Split as Split
    from actstore.storage.chunk_cache import CacheSpec
    from actstore.storage.place import Place as Place
else:  # for annotations alone: the modules of the real ones take 0.35 s, which --help would wait for
    ActivationStore = Split = Place = Any

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
PATH = click.Path(path_type=Path)
STORE_HELP = "The activation store.  [default: $ACTSTORE, or the one *.zarr in this folder]"


def combine(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """One decorator of several, in the order in which --help lists them."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """A callback of options that are asked for where they matter, not handed from function to function."""
    ctx.meta[f"actstore.{param.name}"] = value


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
            percent = float(str(value).strip().removesuffix("%"))
        except ValueError:
            percent = -1.0
        if not 0 <= percent <= 100:
            self.fail(f"expected a share such as 2%, from 0% to 100%, got {value!r}", param, ctx)
        return percent


PERCENT = Percent()


def _cache(meta: Mapping[str, Any]) -> CacheSpec | None:
    from actstore.storage.chunk_cache import DEFAULT_LIMIT, CacheSpec, parse_size

    folder = meta.get("actstore.cache") or os.environ.get("ACTSTORE_CACHE")
    size = meta.get("actstore.cache_size") or os.environ.get("ACTSTORE_CACHE_SIZE")
    return None if not folder else CacheSpec(Path(folder), DEFAULT_LIMIT if not size else parse_size(size))


# which a store given as a URL takes up
cache_options = combine(
    click.option("--cache", metavar="DIR", is_eager=True, expose_value=False, callback=remember,
                 help="Keep chunks of a remote store here, and map them.  [default: $ACTSTORE_CACHE, or none]"),
    click.option("--cache-size", metavar="SIZE", is_eager=True, expose_value=False, callback=remember,
                 help="What the cache may hold, such as 20G.  [default: $ACTSTORE_CACHE_SIZE, or 100G]"),
)  # fmt: skip


def find_store(store: Place | None) -> Place:
    """The one that was named, else $ACTSTORE, else the one *.zarr in the current folder."""
    if store is not None:
        return store
    if named := os.environ.get("ACTSTORE"):
        return STORE.convert(named, None, click.get_current_context(silent=True))
    from actstore.storage.place import stores_in

    here = sorted(stores_in(Path()), key=lambda path: max(one.stat().st_mtime for one in (path, *path.glob("*.json"))))
    if len(here) == 1:
        return here[0]
    if not here:
        raise click.UsageError(
            "no STORE given, $ACTSTORE is not set, and this folder has no *.zarr; `actstore build IMAGES/` makes one"
        )
    names = [path.name for path in reversed(here)]
    raise click.UsageError(
        f"no STORE given, $ACTSTORE is not set, and this folder has {len(here)}, the newest first: {', '.join(names)}; "
        f"choose one: `{typed_with_store(names[0])}`"
    )


def typed_line(*more: str) -> str:
    """The command as it was typed, and words to add to it."""
    return shlex.join([*click.get_current_context().meta.get("actstore.typed", []), *more])


def typed_with_store(name: str) -> str:
    """The command as it was typed, with a store as it takes one: by option, or as its first argument."""
    context = click.get_current_context()
    if any("--store" in parameter.opts for parameter in context.command.params):
        return typed_line("--store", name)
    words = list(context.meta.get("actstore.typed", []))
    place = words.index(str(context.info_name)) + 1 if context.info_name in words else len(words)
    return shlex.join([*words[:place], name, *words[place:]])


def _find(_ctx: click.Context, _param: click.Parameter, value: Place | None) -> Place:
    return find_store(value)


store_argument = combine(click.argument("store", required=False, type=STORE, callback=_find), cache_options)


def store_option(help_: str = STORE_HELP, find: bool = False) -> Callable[[Command], Command]:
    """--store, with --cache and --cache-size. find: by default $ACTSTORE or the one *.zarr in the current folder."""
    return combine(click.option("--store", type=STORE, callback=_find if find else None, help=help_), cache_options)


def device_option(
    default: str = "auto", help_: str = "auto, cpu, cuda, cuda:1, mps or xpu."
) -> Callable[[Command], Command]:
    """--device, which actstore.compute.device.parse_device understands."""
    return click.option("--device", default=default, show_default=True, help=help_)


def weights_option(help_: str = "The backbone's weights, where they have moved.") -> Callable[[Command], Command]:
    return click.option("--weights", type=PATH, help=help_)


def on_error_option(
    default: str = "fail", help_: str = "What to do with an image that cannot be read."
) -> Callable[[Command], Command]:
    choice = click.Choice(["fail", "skip"])
    return click.option("--on-error", type=choice, default=default, show_default=True, help=help_)


seed_option = click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
restart_option = click.option("--restart", is_flag=True, help="Discard an interrupted run instead of resuming it.")
chunk_rows_option = click.option(
    "--chunk-rows", type=click.IntRange(1), help="Rows per chunk file.  [default: about 32 MiB]"
)
split_option = click.option("--split", help="Which split; by default the only one, or train.")
sheet_option = click.option("--sheet", type=FILE, help="Also write a page of thumbnails.")
threads_option = click.option("--threads", type=click.IntRange(1), help="[default: as many as there are cores]")
# which rows; all that are given must hold
filter_options = combine(
    click.option("--class", "classes", multiple=True, help="A class name; may be given several times."),
    click.option("--glob", "path_glob", help="A shell pattern that the image's id must match, such as '*/tench/*'."),
    click.option("--rows", help="A range such as 0:1000, or a file of row numbers (.npy or text)."),
)
where_option = click.option(
    "--where", multiple=True, metavar="CONDITION",
    help="A condition on columns such as 'area > 0.5 and source in (web, print)'; repeatable.",
)  # fmt: skip


def _parse_chart(_ctx: click.Context, _param: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and value.suffix not in (".png", ".svg"):
        raise click.UsageError(f"--chart must end in .png or .svg, got {value}")
    return value


chart_option = click.option("--chart", type=FILE, callback=_parse_chart, help="Also draw bars, .png or .svg.")
# what belongs to an array file
file_options = combine(
    click.option("--labels", type=FILE, help="Labels: .npy, or text with one number or class name per line."),
    click.option("--ids", type=FILE, help="Image ids: text, one per line."),
    click.option("--classes", type=FILE, help="Class names, one per line, in the order of the labels."),
    click.option("--column", multiple=True, metavar="NAME",
                 help="A column of ARRAY, or of --columns, to keep beside the rows; repeatable."),
    click.option("--columns", type=FILE, help="Further values of every row: a .csv or .parquet with a row each."),
    click.option("--array", help="Which array of the file, where it holds several."),
    click.option("--split", help="Name of the split to fill.  [default: train, or the names in the file]"),
    restart_option,
)  # fmt: skip


def _read_trained_on(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> list[str] | None:
    """Of a split file the base; of any other text file its lines."""
    if path is None:
        return None
    from actstore.tables.array_files import read_column
    from actstore.tables.containers import as_text
    from predictor.protocol.category_split import read_split

    return list(read_split(path).base) if path.suffix == ".json" else as_text(read_column(path, "classes"))


trained_on_option = click.option(
    "--trained-on", type=FILE, callback=_read_trained_on,
    help="Classes the network was trained on: names, one per line, or a split file (its base). Without it, "
    "tables say that it may have seen the novel categories.",
)  # fmt: skip


def layout_options(default: str | None = "f2") -> Callable[[Command], Command]:
    """How a new store is laid out on disk. default: None where rows keep the type they come in."""
    kept = "" if default else "  [default: as it comes, f2 for fp16, else f4]"
    return combine(
        click.option("--dtype", type=click.Choice(["f2", "f4"]), default=default, show_default=default is not None,
                     help=f"fp16 or fp32 on disk.{kept}"),
        chunk_rows_option,
        click.option("--codec", type=click.Choice(["raw", "blosc"]), default="raw", show_default=True,
                     help="raw can be memory-mapped; blosc is a little smaller and much slower at random."),
        click.option("--shard-inner-rows", type=click.IntRange(0),
                     help="Make chunk files shards of pieces of so many rows; 0: none.  [default: 0, remote: 1]"),
    )  # fmt: skip


def wait_without_spinning() -> None:
    """To be said before torch is imported: its threads then sleep while they wait. On a machine that does other work
    too, `ppa predict` on 50 photos took 22 s instead of 56, and a third of the processor's time."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def open_split(store: Place, split: str | None) -> Split:
    """By default the only one, or train."""
    import actstore

    opened = actstore.open(store)
    names = list(opened.splits)
    split = split or (names[0] if len(names) == 1 else "train" if "train" in names else None)
    if split is None:
        raise click.UsageError(f"choose a split with --split: {', '.join(names) or 'the store has none yet'}")
    return opened[split]
