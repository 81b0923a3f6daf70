"""A session as a folder: what it began from, every action in a journal, and the images. One server at a time.

FOLDER/session.json         version, and what it began from
FOLDER/start.safetensors    the classifier it began from
FOLDER/journal              every action, see `Journal`
FOLDER/images/, thumbnails/ the images as they came, by content hash, and small
FOLDER/activations/         what the network made of them; made again where a file is missing
FOLDER/classifier.safetensors   what was learnt, a moment after the last action
FOLDER/open.html            leads a browser to the page, with the token
FOLDER/away-*               what is on its way in or out
"""

from __future__ import annotations

import hashlib
import html
import importlib.util
import io
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from actstore.errors import DamagedError, InvalidInputError
from actstore.extraction import choose_network
from actstore.images.decode import decode
from actstore.storage.atomic_file import as_utf8, npy_bytes, storage_errors, sync_directory, write_atomic
from actstore.storage.place import stores_in
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import load_classifier, save_classifier
from predictor.teach.actions import Action, Example, History, Journal, RefusalError, State, parse_action

VERSION = 1
ABOUT, START, JOURNAL, RESULT = "session.json", "start.safetensors", "journal", "classifier.safetensors"
AWAY = "away-"
THUMBNAIL = 192  # pixels of the longer side
IN_MEMORY = 20_000  # activations; those of examples are needed at every change
_KEY = re.compile(r"[0-9a-f]{64}")
Value = TypeVar("Value")
SHOTS = (1, 5)  # numbers of examples that a constant is fitted for, where it was not before


class OtherStartError(InvalidInputError):
    """A session that is there began otherwise than is asked for."""


class Session:
    """Open and locked until `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.about = folder, read_about(folder)
        self._journal = Journal(folder / JOURNAL)  # and its lock
        try:
            for left in folder.glob(f"{AWAY}*"):  # by a kill; the lock says that nobody works at it
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            self.start = load_classifier(folder / START)
            fits = {int(shots): (how, float(bias)) for shots, how, bias in self.about["began"].get("fits", ())}
            self.start.calibrations = (lambda shots: fits) if fits else None
            first, inherited = _inherit(self.start)
            self.history = _replay(folder / JOURNAL, self._journal.entries, first)
            self.images = ImageFolder(folder, inherited)
            self.token = _read_token(folder)
        except BaseException:
            self._journal.close()
            raise

    @property
    def state(self) -> State:
        return self.history.state

    def act(self, action: Action) -> None:
        """Refused before anything is written; on disk when this returns."""
        self._go_on(self.history.act(action), action.to_json())

    def undo(self) -> None:
        self._go_on(self.history.undo(), {"do": "undo"})

    def redo(self) -> None:
        self._go_on(self.history.redo(), {"do": "redo"})

    def scratch(self) -> TemporaryDirectory[str]:
        """A folder in this one for what is on its way in or out: a large file would fill /tmp."""
        return TemporaryDirectory(prefix=AWAY, dir=self.folder)

    def close(self) -> None:
        self._journal.close()

    def _go_on(self, after: History, entry: dict[str, Any]) -> None:
        _ = after.state  # where it is refused
        self._journal.append_entry(entry)
        self.history = after


def begin_session(
    folder: Path, asked: Mapping[str, Any], make: Callable[[Mapping[str, Any]], Classifier], offline: bool = False
) -> None:
    """Make the session's folder, unless it is there; then what is asked for must be what it began with.

    asked: what the user said, by option; nothing stands for what it began with, or for what is in this folder. make:
    the classifier that a new session begins with, from what is asked for.
    """
    require_server()
    if is_session(folder):
        began = read_about(folder)["began"]["asked"]
        if asked and {key: str(value) for key, value in asked.items()} != began:
            was = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in began.items())
            raise OtherStartError(f"{folder} began with {was}; say the same or nothing, or choose another --session")
        return
    asked = asked or find_start(Path(), offline)
    classifier = make(asked)
    calibrations = classifier.calibrations or (lambda shots: {})
    fits = {shots: fit for count in SHOTS for shots, fit in calibrations(count).items()}
    create_session(folder, classifier, {
        "asked": {key: str(value) for key, value in asked.items()},
        "fits": [(shots, *fit) for shots, fit in sorted(fits.items())],
    })  # fmt: skip


def find_start(folder: Path, offline: bool = False) -> dict[str, Any]:
    """What a folder offers: a classifier, a phi and its store, else a network."""
    if (folder / RESULT).is_file():
        return {"classifier": folder / RESULT}
    stores, runs = stores_in(folder), [folder / "runs" / name for name in ("phi2", "phi1", "phi2star")]
    found = [run for run in runs if run.is_dir()]
    if len(stores) == 1 and found:
        return {"phi": found[0], "store": stores[0]}
    return {"backbone": choose_network(offline).name}


def require_server() -> None:
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidInputError(f"`ppa teach` needs {' and '.join(missing)}: pip install 'actstore[teach]'")


def is_session(folder: Path) -> bool:
    return (folder / ABOUT).is_file()


def read_about(folder: Path) -> dict[str, Any]:
    path = folder / ABOUT
    try:
        about = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InvalidInputError(f"{folder} is no session of `ppa teach`: it has no {ABOUT}") from None
    except ValueError as error:
        raise DamagedError(f"{path} is damaged: {error}; choose another --session") from None
    if not isinstance(about, dict) or about.get("version") != VERSION:
        raise InvalidInputError(f"{path} is of another version of this library; choose another --session")
    return about


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
    write_atomic(folder / ABOUT, as_utf8(text))  # last: without it there is no session


def write_opening(folder: Path, address: str) -> Path:
    """A page that leads to the address: a browser that is started with this file shows no token to other users, as all
    may see what a program was started with."""
    path = folder.absolute() / "open.html"
    path.unlink(missing_ok=True)
    link = html.escape(address)
    _write_secret(
        path,
        f"""<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}"><title>ppa teach</title><a href="{link}">ppa teach</a>
""",
    )
    return path


def _read_token(folder: Path) -> str:
    """Drawn once for a session: a page that is open goes on after a restart."""
    path = folder / "token"
    if not path.exists():
        _write_secret(path, secrets.token_urlsafe(24))
    token = path.read_text().strip()
    if len(token) < 32:  # a kill between its making and its writing
        path.unlink()
        return _read_token(folder)
    return token


def _write_secret(path: Path, text: str) -> None:
    """A new file that its owner alone can read."""
    with storage_errors(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)


def _inherit(start: Classifier) -> tuple[State, dict[str, Tensor]]:
    """What the classifier had learnt before: examples without images, and key -> activation (dim,) of each."""
    state, activations = State(), {}
    for name, rows in start.support.items():
        for place, row in enumerate(rows):  # the key is distinct also where two examples are equal
            key = hashlib.sha256(f"{name}\n{place}\n".encode() + row.numpy().tobytes()).hexdigest()
            activations[key] = row
            state.add(name, [Example(key, f"example {place + 1} of {name}", has_image=False)])
    return state, activations


def _replay(path: Path, entries: list[dict[str, Any]], first: State, is_watched: bool = False) -> History:
    """What the entries amount to. is_watched: every state is looked at, to tell the line that does not follow."""
    history, number = History(first), 0
    try:
        for number, entry in enumerate(entries, 1):
            kind = entry.get("do")
            if kind in ("undo", "redo"):
                history = history.undo() if kind == "undo" else history.redo()
            else:
                history = history.act(parse_action(entry))
            if is_watched or number == len(entries):
                _ = history.state
    except RefusalError as error:
        if not is_watched:
            return _replay(path, entries, first, is_watched=True)
        raise DamagedError(f"{path}: line {number:,} does not follow from those before it: {error}") from None
    return history


def _is_unfinished(folder: Path) -> bool:
    """What a killed `create_session` leaves."""
    ours = {"images", START, f"{START}.part", f"{ABOUT}.part"}
    return {path.name for path in folder.iterdir()} <= ours and not any((folder / "images").glob("*"))


def key_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def row_key(row: Tensor) -> str:
    """Of an activation (dim,) that no image gives."""
    return key_of(row.numpy().tobytes())


def parse_key(text: str) -> str:
    """A content hash and nothing else: what a browser sends never becomes a path unseen."""
    if not _KEY.fullmatch(text):
        raise RefusalError(404, "there is no such image")
    return text


class ImageFolder:
    """FOLDER/images/KEY: the bytes as they came. FOLDER/thumbnails/KEY.webp and FOLDER/activations/KEY.npy, (dim,)
    float32: not flushed to disk, as an image gives them again. inherited: activations that no image gives."""

    def __init__(self, folder: Path, inherited: Mapping[str, Tensor] | None = None) -> None:
        self._inherited, self._memory = inherited or {}, dict[str, Tensor]()
        self._images, self._thumbnails, self._activations = self._parts = [
            folder / name for name in ("images", "thumbnails", "activations")
        ]
        for part in self._parts:
            part.mkdir(exist_ok=True)

    def put(self, key: str, data: bytes) -> None:
        """On disk when this returns."""
        if not (self._images / key).exists():  # written whole or not at all
            write_atomic(self._images / key, data)

    def read(self, key: str) -> bytes:
        try:
            return (self._images / parse_key(key)).read_bytes()
        except FileNotFoundError:
            raise RefusalError(404, "there is no such image") from None

    def thumbnail(self, key: str, decoding: AbstractContextManager[object]) -> bytes:
        """decoding: entered where the image has to be decoded again."""
        path = self._thumbnails / f"{parse_key(key)}.webp"
        if path.exists():
            return path.read_bytes()
        with decoding:
            made = thumbnail(decode(self.read(key), "the image"))
        self.put_thumbnail(key, made)
        return made

    def put_thumbnail(self, key: str, made: bytes) -> None:
        _write_unflushed(self._thumbnails / f"{key}.webp", made)

    def activation(self, key: str) -> Tensor | None:
        """What the network made of an image, (dim,); None where it is not at hand."""
        for table in (self._inherited, self._memory):
            if key in table:
                return table[key]
        try:
            values = np.load(self._activations / f"{key}.npy", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None  # not there, or cut off by a power cut
        if values.dtype != np.float32 or values.ndim != 1 or not np.isfinite(values).all():
            return None
        keep_newest(self._memory, key, torch.from_numpy(values), IN_MEMORY)
        return self._memory[key]

    def put_activation(self, key: str, activation: Tensor, is_only_copy: bool = False) -> None:
        """is_only_copy: no image gives it again, so that it is on disk when this returns."""
        write = write_atomic if is_only_copy else _write_unflushed
        write(self._activations / f"{key}.npy", npy_bytes(activation.numpy()))

    def take_over(self, other: ImageFolder) -> None:
        """All files of another folder on the same disk; they are here, and on disk, when this returns."""
        for source, target in zip(other._parts, self._parts, strict=True):
            with storage_errors(target):
                for path in source.iterdir():
                    path.replace(target / path.name)
                sync_directory(target)


def keep_newest(table: dict[str, Value], key: str, value: Value, most: int) -> None:
    """Put a value into a table that forgets the oldest beyond so many."""
    while len(table) >= most:
        del table[next(iter(table))]
    table[key] = value


def thumbnail(image: Image.Image) -> bytes:
    """A WebP whose longer side has 192 pixels; small drawings grow without being blurred."""
    scale = THUMBNAIL / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    method = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC
    small = image.resize(size, method, reducing_gap=2.0)
    out = io.BytesIO()
    small.save(out, "WEBP", quality=82, method=2)
    return out.getvalue()


def _write_unflushed(path: Path, data: bytes) -> None:
    """Whole or not at all where the process is killed; not where the power goes."""
    partial = path.with_name(f"{path.name}.part")
    partial.write_bytes(data)
    partial.replace(path)
