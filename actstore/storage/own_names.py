"""Names of files: those that no other process or thread gives to its own, so that what is under construction is never
written by two, and those of what systems and editors leave in folders."""

from __future__ import annotations

import os
import platform
import re
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

AnyPath = TypeVar("AnyPath", bound=Path)
_PATTERN = r"\.{name}\.(?P<machine>[^/]*)\.(?P<process>[0-9]+)\.[0-9a-f]{{8}}"


def own_name(path: AnyPath) -> AnyPath:
    """Beside `path`, hidden: a new name with this machine's, this process's and a random part."""
    return path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.{uuid.uuid4().hex[:8]}")


def abandoned_names(path: AnyPath) -> list[AnyPath]:
    """What processes of this machine that are gone have left of `own_name(path)`."""
    pattern = re.compile(_PATTERN.format(name=re.escape(path.name)))
    found = ((entry, pattern.fullmatch(entry.name)) for entry in path.parent.glob(f".{glob_text(path.name)}.*"))
    return [
        entry
        for entry, match in found
        if match is not None and match["machine"] == platform.node() and not _is_running(int(match["process"]))
    ]


def glob_text(text: str) -> str:
    """A text as a pattern that matches nothing else."""
    return re.sub(r"([*?[])", r"[\1]", text)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


_LEFT_BY_SYSTEMS = frozenset(
    {"thumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found"}
)


def is_stray(name: str) -> bool:
    """Whether a file or folder of this name is to be passed over without a word.

    Hidden names (`.DS_Store`, `._x` of macOS, `.x.swp` of vim, `.git`), `x~`, `#x#` and `~$x` of editors, and what
    Windows, macOS and network disks put everywhere.
    """
    if name.startswith((".", "~$")) or name.lower() in _LEFT_BY_SYSTEMS:
        return True
    return len(name) > 1 and (name.endswith("~") or (len(name) > 2 and name.startswith("#") and name.endswith("#")))


def has_stray(parts: Iterable[str]) -> bool:
    """Whether a path leads through something stray, or is stray itself."""
    return any(is_stray(part) for part in parts)
