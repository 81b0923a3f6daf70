"""What systems and editors leave in folders: it is no image, no class and no split, wherever it lies."""

from __future__ import annotations

from collections.abc import Iterable

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
