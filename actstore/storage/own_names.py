"""Names that no other process or thread gives to its files: what is under construction is never written by two."""

from __future__ import annotations

import os
import platform
import re
import uuid
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
