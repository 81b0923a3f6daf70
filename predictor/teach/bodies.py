"""Bodies of requests, read with a limit on bytes, seconds and how many there are at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, Any

from starlette.requests import ClientDisconnect, Request

from predictor.teach.limits import MB, Limits, RefusalError

DRAINED_BYTES, DRAINED_SECONDS = 64 * MB, 0.5


class Bodies:
    """At most `limits.bodies` at once, and `limits.waiting` in line."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._turn, self._waiting = limits, asyncio.Semaphore(limits.bodies), 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Held while a body is read and worked on, so that no more of them lie in memory."""
        if self._waiting >= self._limits.waiting:
            raise RefusalError(503, "too many images at once; send them again in a moment")
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turn.release()

    async def whole(self, request: Request, limit: int) -> bytes:
        parts = bytearray()
        async with self._in_time():
            async for part in _parts(request, limit):
                parts += part
        return bytes(parts)

    async def json(self, request: Request) -> Any:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RefusalError(415, "expected a body of application/json")
        data = await self.whole(request, self._limits.json_bytes)
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise RefusalError(400, "the body is no JSON") from None

    async def file(self, request: Request, limit: int, target: IO[bytes]) -> None:
        async with self._in_time():
            async for part in _parts(request, limit):
                await asyncio.to_thread(target.write, part)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                yield
        except TimeoutError:
            raise RefusalError(408, "the body did not arrive in time") from None
        except ClientDisconnect:
            raise RefusalError(400, "the connection ended before the body did") from None


async def _parts(request: Request, limit: int) -> AsyncIterator[bytes]:
    too_large = RefusalError(413, f"more than {limit / MB:,.0f} MB; send something smaller")
    declared = request.headers.get("content-length", "0")
    if not declared.isdigit():
        raise RefusalError(400, "the length of the body must be a number")
    stream, count = request.stream(), 0
    if int(declared) > limit:
        await _drain(stream)
        raise too_large
    async for part in stream:
        count += len(part)
        if count > limit:
            await _drain(stream)
            raise too_large
        yield part


async def _drain(stream: AsyncIterator[bytes]) -> None:
    """Some more of what is refused: a connection that is closed on a sender takes the answer with it."""
    left = DRAINED_BYTES
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(DRAINED_SECONDS):
            async for part in stream:
                left -= len(part)
                if left < 0:
                    return
