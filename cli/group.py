"""What all commands share: one clear line for an error, examples in help, results for people or machines."""

from __future__ import annotations

import errno
import io
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from actstore import ActstoreError, __version__
from actstore.progress import human_bytes as human_bytes
from cli.options import remember

_RESUMING = {
    "build", "import", "append", "select", "rechunk", "audit", "knn", "synth", "glyphs", "pretrain", "train",
    "baseline", "demo",
}  # fmt: skip


class Commands(click.Group):
    """A group that turns errors raised on purpose into one line and exit code 1."""

    @classmethod
    def of(cls, tool: str, help_: str, epilog: str, commands: Sequence[click.Command]) -> Commands:
        named = {str(command.name): _with_force(command) for command in commands}
        settings = {"help_option_names": ["-h", "--help"]}
        group = cls(tool, named, help=help_, epilog=epilog, context_settings=settings)
        debug = click.option("--debug", is_flag=True, help="Show the traceback of an error.")
        return debug(click.version_option(__version__, prog_name=tool)(group))

    def main(self, *arguments: Any, **options: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):  # a class name that the terminal cannot show is no reason to fail
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*arguments, **options)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["actstore.typed"] = [str(ctx.info_name), *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ActstoreError, OSError, MemoryError, EOFError, OverflowError) as error:
            if ctx.params.get("debug"):
                raise
            said = str(error) if isinstance(error, ActstoreError) else f"{_plainly(error)} (--debug shows where)"
            raise click.ClickException(said) from error
        except KeyboardInterrupt:
            then = "go on where it stopped" if ctx.invoked_subcommand in _RESUMING else "start again"
            raise click.ClickException(f"interrupted; repeat the same command to {then}") from None


def _with_force(command: click.Command) -> click.Command:
    """--force, for a command that writes files which the user names; `cli.outputs.claim` asks for it."""
    names = {"out", "output", "chart", "sheet", "torch_file", "onnx_file", "csv_file"}
    files = [each for each in command.params if isinstance(each.type, click.Path) and each.type.file_okay]
    if names & {each.name for each in files} and not any(each.name == "force" for each in command.params):
        said = "Replace output files that exist."
        command.params.append(click.Option(["--force"], is_flag=True, expose_value=False, callback=remember, help=said))
    return command


def _plainly(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return f"it does not fit into memory: {error}" if str(error) else "it does not fit into memory"
    if not isinstance(error, OSError) or not error.strerror:
        return f"{type(error).__name__}: {error}"
    advice = "; free some space and run the same command again" if error.errno == errno.ENOSPC else ""
    return f"{error.filename}: {error.strerror}{advice}" if error.filename else f"{error.strerror}{advice}"


json_option = click.option(
    "--json", is_flag=True, expose_value=False, callback=remember, help="Print the result as JSON."
)


def wants_json() -> bool:
    return bool(click.get_current_context().meta["actstore.json"])


def emit(result: Any, text: str) -> None:
    """The result on stdout: JSON for machines where --json asks for it, text for people."""
    # escapes of JSON where the terminal knows few letters: a backslash of any other kind would not be JSON
    is_unicode = (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    click.echo(json.dumps(result, indent=2, ensure_ascii=not is_unicode) if wants_json() else text)


def warn_of_classes(lacking: Mapping[str, Sequence[str]]) -> None:
    """A line on stderr for every split with classes that train lacks."""
    from actstore.images import lacks_text

    for split, names in lacking.items():
        click.echo(f"WARNING: {lacks_text(split, names)}", err=True)


def describe_rows(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{split} {count:,} row{'s' * (count != 1)}" for split, count in rows.items())


def example(*lines: str) -> str:
    """An epilog that keeps its line breaks."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def table(header: list[str], rows: list[list[Any]]) -> str:
    """Columns aligned: numbers right, text left."""
    columns = [_aligned(name, [row[place] for row in rows]) for place, name in enumerate(header)]
    return "\n".join("  ".join(cells).rstrip() for cells in zip(*columns, strict=True))


def _aligned(name: str, values: list[Any]) -> list[str]:
    cells = [name, *map(str, values)]
    width = max(map(len, cells))
    is_numeric = bool(values) and all(isinstance(value, int | float) for value in values)
    return [cell.rjust(width) if is_numeric else cell.ljust(width) for cell in cells]
