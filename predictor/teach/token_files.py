"""The token of a session, in files that their owner alone can read."""

from __future__ import annotations

import html
import os
import secrets
from pathlib import Path

from actstore.storage.atomic_file import storage_errors


def read_token(folder: Path) -> str:
    """Drawn once for a session: a page that is open goes on after a restart. Readable by the owner alone."""
    path = folder / "token"
    if not path.exists():
        _write_secret(path, secrets.token_urlsafe(24))
    token = path.read_text().strip()
    if len(token) < 32:  # a kill between its making and its writing
        path.unlink()
        return read_token(folder)
    return token


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


def _write_secret(path: Path, text: str) -> None:
    """A new file that its owner alone can read."""
    with storage_errors(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
