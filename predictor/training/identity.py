"""Whether two trainings are the same: all that decides the outcome, in parts that are mappings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actstore.errors import InvalidInputError


def refuse_other_training(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Name what differs between the training of a checkpoint and the one that wants to resume it."""
    now = json.loads(json.dumps(now))  # as it would be read back: tuples become lists
    differences = [
        _difference(part, before.get(part), value) for part, value in now.items() if before.get(part) != value
    ]
    if differences:
        raise InvalidInputError(
            f"{path} belongs to another training: {'; '.join(differences)}; "
            "repeat the options of that one, choose another --out, or discard it with --restart"
        )


def _difference(part: str, before: Any, now: Any) -> str:
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return f"its {part} differs"
    changed = [key for key in now if before.get(key) != now[key]]
    return "; ".join(f"{part} {_short(key, before.get(key), now[key])}" for key in changed)


def _short(key: str, before: Any, now: Any) -> str:
    name = key.replace("_", " ")
    if _are_names(now) and _are_names(before or []):
        known, fresh = set(before or ()), set(now)
        if len(known) != len(fresh):
            return f"{name} was {len(known):,} classes, is {len(fresh):,}"
        other = min(fresh - known, default=None)
        return f"{name} is in another order" if other is None else f"{name} has {other!r}, which it did not"
    return f"{name} was {before}, is {now}"


def _are_names(value: Any) -> bool:
    """Class names; other lists, such as the widths of phi's layers, are told as they are."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)
