"""What a command may write to: one rule for all of them.

An existing file is replaced only if it is of the kind that the command writes (filekinds.py: its content says so, not
its name); where such a file took the user's work, only with --force. What a command reads it never writes to, also
through a link, and no two of its outputs are one file. All of this is checked before the work begins.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from actstore.errors import InvalidInputError
from cli.filekinds import TABLES, Kind
from cli.options import Split
from predictor.report.results_folder import RESULTS

Claimed = tuple[Path | None, Kind]
_BESIDE = ("labels", "ids", "classes", "columns")  # files beside an imported array, as a source names them
FORCE = "choose another name, or replace it with --force"


def claim(*outputs: Claimed, inputs: Iterable[Any] = (), force: bool = False, advice: str = FORCE) -> None:
    """Refuse outputs that would destroy something. None stands for what was not asked for, on either side.

    inputs: paths; what is no path, such as a URL, is passed over. advice: what to do instead of --force.
    """
    wanted = [(path, kind) for path, kind in outputs if path is not None]
    read = [Path(path) for path in inputs if hasattr(path, "__fspath__")]
    for place, (path, kind) in enumerate(wanted):
        _require_place(path)
        if any(_is_same(path, other) for other in read):
            raise InvalidInputError(f"{path} is read by this command, which cannot write to it; choose another name")
        if any(_is_same(path, other) for other, _ in wanted[:place]):
            raise InvalidInputError(f"{path} is asked for twice; each output needs a name of its own")
        _require_kind(path, kind)
        if kind.is_work and path.exists() and not force:
            raise InvalidInputError(f"{path} exists; {advice}")


def claim_folder(folder: Path, kinds: Sequence[tuple[str, Kind]], inputs: Iterable[Any] = ()) -> None:
    """The same for the files that a command leaves in a folder of its own."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInputError(f"{folder} must be a folder, but it is a file; choose another name")
    claim(*((folder / name, kind) for name, kind in kinds), inputs=inputs)


def claim_table(path: Path | None, inputs: Iterable[Any]) -> None:
    """A table may replace another of its kind."""
    if path is not None:
        if path.suffix not in TABLES:
            raise click.UsageError(f"--out must end in .md, .csv or .json, got {path}")
        claim((path, TABLES[path.suffix]), inputs=inputs)


def claim_kept_table(out: Path | None, name: str) -> Path | None:
    """Where a table is kept for `ppa report`: in results/, or nowhere where --out is such a file already."""
    if out is not None and out.suffix == ".json":
        return None
    path = RESULTS / name
    claim((path, TABLES[".json"]))
    return path


def write_kept(path: Path | None, records: Any) -> None:
    """A result that was printed is not lost with a folder that cannot be written to: that is only said."""
    from actstore.storage.atomic_file import write_atomic

    if path is not None:
        try:
            path.parent.mkdir(exist_ok=True)
            write_atomic(path, (json.dumps(records, indent=1) + "\n").encode())
        except OSError as error:
            click.echo(f"not kept for `ppa report`: {path}: {error.strerror or error}", err=True)


def write_table(path: Path | None, records: Any, markdown: str, csv: str) -> None:
    """By the ending of the path; nothing without one."""
    from actstore.storage.atomic_file import as_utf8, write_atomic

    if path is not None:
        text = {".md": markdown, ".csv": csv}.get(path.suffix) or json.dumps(records, indent=1)
        write_atomic(path, as_utf8(text.rstrip("\n") + "\n"))


def sources_of(split: Split) -> list[Path]:
    """The store and the files its rows came from, which no export of it may replace."""
    sources = split.committed.sources
    named = [source[key] for source in sources for key in _BESIDE if key in source]
    files = [file for file in named if isinstance(file, Mapping)]  # generated rows have a number of classes there
    paths = [split.store_path.local_path, *(file.get("path") for file in [*sources, *files])]
    return [Path(path) for path in paths if path is not None]


def _require_place(path: Path) -> None:
    """A file can be there: its folder exists or can be made, and it lies in no store."""
    if path.is_dir():
        raise InvalidInputError(f"{path} is a folder; expected the name of a file to write")
    if path.exists() and not path.is_file():
        raise InvalidInputError(f"{path} is no plain file; expected the name of a file to write")
    real = Path(os.path.realpath(path))
    above = next(folder for folder in real.parents if os.path.lexists(folder))
    if not above.is_dir():
        raise InvalidInputError(f"{path} cannot be written: {above} is no folder")
    if any((folder / "zarr.json").exists() for folder in real.parents):
        raise InvalidInputError(f"{path} lies inside of a store, where only its own files belong; choose another name")


def _require_kind(path: Path, kind: Kind) -> None:
    if path.is_symlink() and not path.exists():
        raise InvalidInputError(f"{path} is a link that leads nowhere; choose another name")
    if path.exists() and not kind.matches(path):
        raise InvalidInputError(
            f"{path} exists and is not {kind.name}, as this command writes; choose another name, or move it away"
        )


def _is_same(one: Path, other: Path) -> bool:
    """By what they lead to: links and different spellings of a path do not hide it."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)
