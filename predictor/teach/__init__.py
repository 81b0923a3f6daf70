"""Teaching by showing: a session folder, the network behind it, and the local page on which a person works with both.

Imports `classifier` and what stands above it; starlette and uvicorn are imported only here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from predictor.teach.serving import serve
    from predictor.teach.session import OtherStartError, begin_session, write_opening

_HOMES = {"OtherStartError": "session", "begin_session": "session", "serve": "serving", "write_opening": "session"}

__all__ = ["OtherStartError", "begin_session", "serve", "write_opening"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'predictor.teach' has no attribute {name!r}")
    return getattr(import_module(f"predictor.teach.{_HOMES[name]}"), name)
