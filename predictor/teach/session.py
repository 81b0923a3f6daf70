"""A session as a folder: what it began from, every action in a journal, and the images. One server at a time.

FOLDER/session.json         version, and what it began from
FOLDER/start.safetensors    the classifier it began from
FOLDER/journal              every action, see journal.py
FOLDER/images/              the images as they came, by content hash
FOLDER/activations/         what the network made of them; made again where a file is missing
FOLDER/classifier.safetensors   what was learnt, a moment after the last action
FOLDER/open.html            leads a browser to the page, with the token
FOLDER/away-*               a file on its way in or out
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from actstore.errors import DamagedError, InvalidInputError
from actstore.storage.atomic_file import storage_errors, sync_directory, write_atomic
from actstore.storage.file_lock import FileLock
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import load_classifier, save_classifier
from predictor.teach.actions import Action, parse_action
from predictor.teach.history import History
from predictor.teach.images import ImageFolder
from predictor.teach.journal import Journal
from predictor.teach.refusal import RefusalError
from predictor.teach.state import Category, Example, State
from predictor.teach.token_files import read_token

VERSION = 1
ABOUT, START, JOURNAL, RESULT = "session.json", "start.safetensors", "journal", "classifier.safetensors"
AWAY = "away-"


class Session:
    """Open and locked until `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about = read_about(folder)
        refusal = f"another `ppa teach` serves {folder}; use its page, end it, or choose another --session"
        self._lock = FileLock(folder / "lock", refusal)
        try:
            for left in folder.glob(f"{AWAY}*"):  # by a kill; the lock says that nobody works at it
                left.unlink()
            self.start = load_classifier(folder / START)
            self.inherited = _inherited(self.start)  # key -> (dim,)
            self._journal = Journal(folder / JOURNAL)
            self.history = _replay(folder / JOURNAL, self._journal.entries, first_state(self.start))
            self.images = ImageFolder(folder)
            self.token = read_token(folder)
        except BaseException:
            self._lock.close()
            raise

    @property
    def state(self) -> State:
        return self.history.state

    def act(self, action: Action) -> None:
        """Refused before anything is written; on disk when this returns."""
        action.apply(self.state)
        self._journal.append(action.to_json())
        self.history.act(action)

    def undo(self) -> str:
        return self._step("undo")

    def redo(self) -> str:
        return self._step("redo")

    def close(self) -> None:
        self._journal.close()
        self._lock.close()

    def _step(self, kind: str) -> str:
        if not (self.history.done if kind == "undo" else self.history.undone):
            raise RefusalError(409, f"there is nothing to {kind}")
        self._journal.append({"do": kind})
        return self.history.undo() if kind == "undo" else self.history.redo()


def is_session(folder: Path) -> bool:
    return (folder / ABOUT).is_file()


def read_about(folder: Path) -> dict[str, Any]:
    path = folder / ABOUT
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InvalidInputError(f"{folder} is no session of `ppa teach`: it has no {ABOUT}") from None
    except ValueError as error:
        raise DamagedError(f"{path} is damaged: {error}; choose another --session") from None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise InvalidInputError(f"{path} is of another version of this library; choose another --session")
    return found


def create_session(folder: Path, start: Classifier, began: Mapping[str, Any]) -> None:
    """began: what the user asked for, compared when the session is opened again. Whole or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not _is_unfinished(folder):
        raise InvalidInputError(f"{folder} is there and no session of `ppa teach`; choose another --session")
    with storage_errors(folder):
        (folder / "images").mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        sync_directory(folder)
        sync_directory(folder.absolute().parent)
    save_classifier(folder / START, start)
    text = json.dumps({"version": VERSION, "began": dict(began)}, indent=1, ensure_ascii=False)
    write_atomic(folder / ABOUT, text.encode())  # last: without it there is no session


def first_state(start: Classifier) -> State:
    """What the classifier had learnt before; its examples are activations without images."""
    return State(tuple(
        Category(name, tuple(
            Example(_row_key(name, place, row), f"example {place + 1} of {name}", has_image=False)
            for place, row in enumerate(rows)
        ))
        for name, rows in start.support.items()
    ))  # fmt: skip


def _inherited(start: Classifier) -> dict[str, Tensor]:
    return {_row_key(name, place, row): row for name, rows in start.support.items() for place, row in enumerate(rows)}


def _row_key(name: str, place: int, row: Tensor) -> str:
    """Distinct also where two examples are equal."""
    return hashlib.sha256(f"{name}\n{place}\n".encode() + row.numpy().tobytes()).hexdigest()


def _replay(path: Path, entries: list[dict[str, Any]], first: State) -> History:
    history = History(first)
    for number, entry in enumerate(entries, 1):
        try:
            if entry.get("do") in ("undo", "redo"):
                history.undo() if entry["do"] == "undo" else history.redo()
            else:
                history.act(parse_action(entry, names=history.state.names))
        except RefusalError as error:
            raise DamagedError(f"{path}: line {number:,} does not follow from those before it: {error}") from None
    return history


def _is_unfinished(folder: Path) -> bool:
    """What a killed `create_session` leaves."""
    ours = {"images", START, f"{START}.part", f"{ABOUT}.part"}
    return {path.name for path in folder.iterdir()} <= ours and not any((folder / "images").glob("*"))
