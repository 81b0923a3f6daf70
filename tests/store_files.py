"""The files of a folder, to compare what two ways of writing leave."""

from __future__ import annotations

from pathlib import Path


def files(folder: Path | str) -> dict[str, bytes]:
    """The bytes of every file below a folder, by its path there."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
    }
