"""What a demo has done already: every step's command and inputs, so that only what changed is run again."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cli.ppa.demo_steps import Step


@dataclass
class Entry:
    """inputs: path -> what its content was. seconds: of all attempts together."""

    name: str
    title: str
    command: str
    inputs: dict[str, str]
    done: bool = False
    seconds: float = 0.0


class Record:
    """steps.json in the demo's folder, written before and after every step."""

    def __init__(self, path: Path) -> None:
        from actstore import __version__

        self._path, self._version = path, __version__
        self._entries: dict[str, Entry] = {}
        if path.exists():
            from predictor.report.run_folder import read_json

            kept = read_json(path, dict)
            if kept.get("version") == __version__:  # another release may do a step otherwise: all is done again
                self._entries = {entry["name"]: Entry(**entry) for entry in kept.get("steps", [])}

    def is_done(self, step: Step) -> bool:
        """The same command, on the same inputs, and what it made is still there."""
        known = self._entries.get(step.name)
        return (
            known is not None
            and known.done
            and known.command == shlex.join(step.words)
            and known.inputs == fingerprints(step)
            and all(path.exists() for path in step.outputs)
        )

    def begin(self, step: Step) -> Entry:
        """A step that was interrupted is resumed; what another command or other inputs made is removed."""
        known = self._entries.get(step.name)
        entry = Entry(step.name, step.title, shlex.join(step.words), fingerprints(step))
        if known is not None and (known.command, known.inputs) != (entry.command, entry.inputs):
            for path in step.outputs:
                remove(path)
        elif known is not None and not known.done:
            entry.seconds = known.seconds
        self._entries[step.name] = entry
        self.save()
        return entry

    def forget(self, step: Step) -> None:
        self._entries.pop(step.name, None)
        self.save()

    def save(self) -> None:
        from actstore.storage.atomic_file import as_utf8, write_atomic

        text: dict[str, Any] = {"version": self._version, "steps": [asdict(entry) for entry in self._entries.values()]}
        write_atomic(self._path, as_utf8(json.dumps(text, indent=1, ensure_ascii=False)))


def fingerprints(step: Step) -> dict[str, str]:
    return {str(path): fingerprint(path) for path in step.inputs}


def fingerprint(path: Path) -> str:
    """Of a store the hashes of its rows, of a file that of its bytes; empty where there is nothing."""
    if path.suffix == ".zarr" and path.is_dir():
        import actstore

        store = actstore.open(path)
        return " ".join(f"{name}:{split.content}" for name, split in store.splits.items())
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
