"""What goes back to the page: JSON, pictures, and errors as one sentence."""

from __future__ import annotations

import json
import sys
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from actstore.errors import StorageError


def answer(value: Any, status: int = 200) -> Response:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Response(body, status, {"cache-control": "no-store"}, "application/json")


def picture(data: bytes) -> Response:
    """Named by its content, so that it never changes."""
    return Response(data, media_type="image/webp", headers={"cache-control": "private, max-age=31536000, immutable"})


async def refused(_: Request, error: Any) -> Response:
    response = answer({"error": str(error)}, error.status)
    response.headers["connection"] = "close"  # a body may still be on its way
    return response


async def unrouted(_: Request, error: Any) -> Response:
    said = {404: "there is nothing here", 405: "this cannot be done here"}.get(error.status_code, "this is refused")
    return answer({"error": said}, error.status_code)


async def failed(_: Request, error: Any) -> Response:
    """507 where the disk refused, 500 for what should not happen; the page gets a sentence, the terminal the cause."""
    print(f"ppa teach: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    if isinstance(error, StorageError):
        return answer({"error": str(error)}, 507)
    return answer({"error": "this went wrong; the terminal of `ppa teach` says why"}, 500)
