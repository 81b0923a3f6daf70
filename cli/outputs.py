"""What a command may write to: an output is never an input, and an existing file is replaced only with --force.

What a command keeps by itself, such as results/table.json or the folder of a run, it replaces without being told, if
the file carries a mark of our tools; a table of other figures it moves to a numbered name beside it. Links and
different spellings of a path hide nothing, no two outputs are one file, and all of this is checked before the work
begins.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import click

from actstore import InvalidInputError
from predictor.report import RESULTS

Paths = Iterable[Path | None]
FORCE = "choose another name, or replace it with --force"
# among the first bytes of what our tools keep: JSON, safetensors, pictures, logs
_MARKS = (b"actstore", b"atplotlib", b'"backbone":', b'"classes":', b'"method":', b'"identity":', b'"asked":',
          b'"steps":', b'"store":', b'"novel_bias":', b'"names":', b'"unit":', b"epoch,step,",
          b"Predicting the parameters")  # fmt: skip


def claim(
    *outputs: Path | None, kept: Paths = (), inputs: Iterable[Any] = (), force: bool = False, advice: str = FORCE
) -> None:
    """Refuse outputs that would destroy something. None stands for what was not asked for, on either side.

    kept: files that the command keeps by itself. inputs: what is no path, such as a URL, is passed over.
    """
    if (context := click.get_current_context(silent=True)) is not None:
        force = force or bool(context.params.get("force") or context.meta.get("actstore.force"))
    read = [Path(path) for path in inputs if hasattr(path, "__fspath__")]
    taken: list[Path] = []
    for path in filter(None, (*outputs, *kept)):
        _require_place(path)
        if any(_is_same(path, other) for other in read):
            raise InvalidInputError(f"{path} is read by this command, which cannot write to it; choose another name")
        if any(_is_same(path, other) for other in taken):
            raise InvalidInputError(f"{path} is asked for twice; each output needs a name of its own")
        if path.exists() and not force and (path in outputs or not _is_ours(path)):
            raise InvalidInputError(f"{path} exists; {advice}")
        taken.append(path)


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(1 << 20)
    return head.startswith(b"step,") or any(mark in head for mark in _MARKS)


def claim_folder(folder: Path, names: Sequence[str], inputs: Iterable[Any] = ()) -> None:
    """The same for the files that a command leaves in a folder of its own."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInputError(f"{folder} must be a folder, but it is a file; choose another name")
    claim(kept=[folder / name for name in names], inputs=inputs)


def claim_kept_table(out: Path | None, name: str) -> Path | None:
    """Where a table is kept for `ppa report`: in results/, or nowhere where --out is such a file already."""
    if out is not None and out.suffix == ".json":
        return None
    claim(kept=[RESULTS / name])
    return RESULTS / name


def write_kept(path: Path | None, records: Any) -> None:
    """A result that was printed is not lost with a folder that cannot be written to: that is only said."""
    from actstore.storage import FileLock, write_atomic

    if path is not None:
        content = (json.dumps(records, indent=1) + "\n").encode()
        try:
            path.parent.mkdir(exist_ok=True)
            with FileLock(path.parent, must_exist=True):  # of two commands at once neither loses the other's table
                _move_aside(path, content)
                write_atomic(path, content)
        except OSError as error:
            click.echo(f"not kept for `ppa report`: {path}: {error.strerror or error}", err=True)


def _move_aside(path: Path, content: bytes) -> None:
    """What lies there gets the first free of table-1.json, table-2.json, …, unless it is the same already."""
    if not path.exists() or path.read_bytes() == content:
        return
    names = (path.with_stem(f"{path.stem}-{number}") for number in count(1))
    aside = next(name for name in names if not os.path.lexists(name))
    path.rename(aside)
    click.echo(f"{path} held other figures: they are in {aside} now", err=True)


def _require_place(path: Path) -> None:
    """A file can be there: its folder exists or can be made, and it lies in no store."""
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "no plain file"
        raise InvalidInputError(f"{path} is {what}; expected the name of a file to write")
    if path.is_symlink() and not path.exists():
        raise InvalidInputError(f"{path} is a link that leads nowhere; choose another name")
    real = Path(os.path.realpath(path))
    above = next(folder for folder in real.parents if os.path.lexists(folder))
    if not above.is_dir():
        raise InvalidInputError(f"{path} cannot be written: {above} is no folder")
    if any((folder / "zarr.json").exists() for folder in real.parents):
        raise InvalidInputError(f"{path} lies inside of a store, where only its own files belong; choose another name")


def _is_same(one: Path, other: Path) -> bool:
    """By what they lead to: links and different spellings of a path do not hide it."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)
