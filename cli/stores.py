"""Stores as commands take them: a path, a URL, $ACTSTORE, or the one in the current folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.options import Command, combine, remember, typed_with_store

if TYPE_CHECKING:
    from actstore import ActivationStore as ActivationStore
    from actstore import Split as Split
    from actstore.storage import CacheSpec
    from actstore.storage import Place as Place
else:  # for annotations alone: the modules of the real ones take 0.35 s, which --help would wait for
    ActivationStore = Split = Place = Any

STORE_HELP = "The activation store.  [default: $ACTSTORE, or the one *.zarr in this folder]"
_BESIDE = ("labels", "ids", "classes", "columns")  # of an imported array: files; of generated rows: numbers


class StoreType(click.ParamType[Any]):
    """A path, or a URL such as s3://BUCKET/NAME with the cache that --cache or $ACTSTORE_CACHE names."""

    name = "store"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        from actstore.storage import parse_place

        return parse_place(value, _cache({} if ctx is None else ctx.meta))


STORE = StoreType()


def _cache(meta: Mapping[str, Any]) -> CacheSpec | None:
    from actstore.storage import DEFAULT_LIMIT, CacheSpec, parse_size

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
    from actstore.storage import stores_in

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


def _find(_ctx: click.Context, _param: click.Parameter, value: Place | None) -> Place:
    return find_store(value)


store_argument = combine(click.argument("store", required=False, type=STORE, callback=_find), cache_options)


def store_option(help_: str = STORE_HELP, find: bool = False) -> Callable[[Command], Command]:
    """--store, with --cache and --cache-size. find: by default $ACTSTORE or the one *.zarr in the current folder."""
    return combine(click.option("--store", type=STORE, callback=_find if find else None, help=help_), cache_options)


def open_split(store: Place, split: str | None) -> Split:
    """Of STORE/SPLIT that one; of STORE the one that is named, by default the only one, or train."""
    import actstore
    from actstore.analysis import store_and_split

    place, named = store_and_split(store)
    if named is not None and split is not None:
        raise click.UsageError(f"{store} is split {named} already; leave out --split {split}")
    opened = actstore.open(place)
    names = list(opened.splits)
    split = split or named or (names[0] if len(names) == 1 else "train" if "train" in names else None)
    if split is None:
        raise click.UsageError(f"choose a split with --split: {', '.join(names) or 'the store has none yet'}")
    return opened[split]


def chosen_rows(
    split: Split, classes: tuple[str, ...], path_glob: str | None, rows: str | None, where: tuple[str, ...]
) -> Any:
    """Rows that meet every filter; None where none was given."""
    is_filtered = bool(classes or where) or path_glob is not None or rows is not None
    return split.query(classes or None, path_glob, rows, where) if is_filtered else None


def sources_of(split: Split) -> list[Path]:
    """The store and the files its rows came from, which no export of it may replace."""
    sources = split.committed.sources
    files = [source[key] for source in sources for key in _BESIDE if isinstance(source.get(key), Mapping)]
    paths = [split.store_path.local_path, *(file.get("path") for file in [*sources, *files])]
    return [Path(path) for path in paths if path is not None]
