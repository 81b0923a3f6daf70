"""Who may speak to the server: a page that was opened with the printed address, and nobody else. Pure ASGI."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from predictor.teach.limits import RefusalError

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


class Guard:
    """Host, then Origin, then token; then the answer goes out with the headers above.

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
    body = json.dumps({"error": str(error)}, ensure_ascii=False)
    return Response(body, error.status, {"cache-control": "no-store", "connection": "close"}, "application/json")
