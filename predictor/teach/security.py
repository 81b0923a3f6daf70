"""Who may speak to the server (a page that was opened with the printed address, and nobody else), and how much."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from predictor.teach.actions import RefusalError

MB = 1 << 20
# no inline code, nothing from another host, not inside of another page; blob: shows an image before it is sent
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=()"),
)
COOKIE_DAYS = 30
HEADER_BYTES = 32 << 10
DRAINED_BYTES, DRAINED_SECONDS = 64 * MB, 0.5


@dataclass(frozen=True)
class Limits:
    """Bytes, pixels, counts and seconds. decodes: images decoded at once, each of up to `pixels` (4 bytes of memory
    each, three times over where there is transparency). waiting: requests with a body that may wait for their turn."""

    image_bytes: int = 40 * MB
    json_bytes: int = 1 * MB
    archive_bytes: int = 1024 * MB
    unpacked_bytes: int = 2048 * MB
    pixels: int = 50_000_000
    examples: int = 5_000
    categories: int = 1_000
    decodes: int = 1
    bodies: int = 4
    waiting: int = 32
    body_seconds: float = 60.0
    connections: int = 64


class Security:
    """An ASGI application around another: Host, then Origin, then token; then the answer goes out with the headers
    above.

    hosts: what a Host header may say, with the port. token: as the address has it; a page gets it as a cookie, programs
    send it as `Authorization: Bearer`.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], token: str) -> None:
        known = [host.lower() for host in hosts]
        port = known[0].rpartition(":")[2]
        bare = [host.removesuffix(":80") for host in known] if port == "80" else []  # browsers leave this port out
        self._app, self._hosts, self._token = app, frozenset([*known, *bare]), token
        self._cookie = f"ppa-teach-{port}"  # cookies are shared between the ports of a host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no other protocol is spoken
        opens = False

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS, *(self._opened() if opens else ())]
            await send(message)

        try:
            opens = self._check(scope)
        except RefusalError as error:
            await refusal(error)(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _check(self, scope: Scope) -> bool:
        """Refuses; returns whether the request came by the printed address."""
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
            raise RefusalError(431, "the headers of the request are too long")
        headers = Headers(scope=scope)
        host = headers.getlist("host")
        if len(host) != 1 or host[0].lower() not in self._hosts:
            raise RefusalError(421, "this server answers only at the address that `ppa teach` printed")
        for origin in headers.getlist("origin"):
            if origin.lower() not in {f"http://{known}" for known in self._hosts}:
                raise RefusalError(403, "requests of other pages are refused")
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        by_address = scope["path"] == "/" and self._is_token(token)
        if not by_address and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise RefusalError(403, "requests of other pages are refused")
        if not by_address and not any(map(self._is_token, self._tokens(headers))):
            raise RefusalError(401, "open the address that `ppa teach` printed: it has a token, and this request none")
        return by_address

    def _tokens(self, headers: Headers) -> list[str]:
        tokens = [value.removeprefix("Bearer ") for value in headers.getlist("authorization")]
        for text in headers.getlist("cookie"):
            for pair in text.split(";"):  # by hand: http.cookies gives up all of them where one is odd
                name, _, value = pair.partition("=")
                tokens += [value.strip()] if name.strip() == self._cookie else []
        return tokens

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._token.encode())

    def _opened(self) -> list[tuple[bytes, bytes]]:
        age = COOKIE_DAYS * 86_400
        text = f"{self._cookie}={self._token}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict"
        return [(b"set-cookie", text.encode())]


def refusal(error: RefusalError) -> Response:
    """One sentence as JSON; the connection is closed, as a body may still be on its way."""
    return JSONResponse({"error": str(error)}, error.status, {"cache-control": "no-store", "connection": "close"})


class RequestBodies:
    """Bodies of requests, read with a limit on bytes and seconds; at most `limits.bodies` at once, and
    `limits.waiting` in line."""

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
        data = bytearray()
        await self._read(request, limit, data.extend)
        return bytes(data)

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
        await self._read(request, limit, lambda part: asyncio.to_thread(target.write, part))

    async def _read(self, request: Request, limit: int, keep: Callable[[bytes], Awaitable[object] | None]) -> None:
        declared = request.headers.get("content-length", "0")
        if not declared.isdigit():
            raise RefusalError(400, "the length of the body must be a number")
        stream, count = request.stream(), int(declared) if int(declared) > limit else 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while count <= limit and (part := await anext(stream, None)) is not None:
                    count += len(part)
                    if count <= limit and (kept := keep(part)) is not None:
                        await kept
                if count > limit:
                    await _drain(stream)
                    raise RefusalError(413, f"more than {limit / MB:,.0f} MB; send something smaller")
        except TimeoutError:
            raise RefusalError(408, "the body did not arrive in time") from None
        except ClientDisconnect:
            raise RefusalError(400, "the connection ended before the body did") from None


async def _drain(stream: AsyncIterator[bytes]) -> None:
    """Some more of what is refused: a connection that is closed on a sender takes the answer with it."""
    left = DRAINED_BYTES
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(DRAINED_SECONDS):
            async for part in stream:
                left -= len(part)
                if left < 0:
                    return
