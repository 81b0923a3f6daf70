"""Arguments and options that several commands take."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
PATH = click.Path(path_type=Path)
SHARE = click.FloatRange(0, 1, max_open=True)


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


def device_option(
    default: str = "auto", help_: str = "auto, cpu, cuda, cuda:1, mps or xpu.", of_torch: bool = True
) -> Callable[[Command], Command]:
    """--device; one that torch does not find is refused before anything is fetched, read or generated."""
    check = _require_device if of_torch else None
    return click.option("--device", default=default, show_default=True, callback=check, help=help_)


def _require_device(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if value not in ("auto", "cpu"):
        from actstore.compute import parse_device

        parse_device(value)
    return value


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
split_option = click.option("--split", help="Which split, or give STORE/SPLIT; by default the only one, or train.")
sheet_option = click.option("--sheet", type=FILE, help="Also write a page of thumbnails.")
threads_option = click.option(
    "--threads", type=click.IntRange(1), help="[default: as many as torch uses, see OMP_NUM_THREADS]"
)


def ending(*endings: str) -> Callable[[click.Context, click.Parameter, Path | None], Path | None]:
    """A callback that refuses a file of another kind."""

    def check(_ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
        if value is not None and value.suffix not in endings:
            name = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
            listed = " or ".join(filter(None, (", ".join(endings[:-1]), endings[-1])))
            raise click.UsageError(f"{name} must end in {listed}, got {value}")
        return value

    return check


chart_option = click.option("--chart", type=FILE, callback=ending(".png", ".svg"), help="Also draw bars, .png or .svg.")


def wait_without_spinning() -> None:
    """To be said before torch is imported: its threads then sleep while they wait. On a machine that does other work
    too, `ppa predict` on 50 photos took 22 s instead of 56, and a third of the processor's time."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
