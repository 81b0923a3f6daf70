"""Who is let in: hosts as browsers write them, and cookies beside those of other programs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from predictor.teach.security import Security
from predictor.teach.serving import _hosts

TOKEN = "t" * 32


def status(hosts: list[str], path: str = "/", query: str = "", **headers: str) -> int:
    """What a request is answered with; 200 where the guard lets it through."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "query_string": query.encode(),
             "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]}  # fmt: skip
    asyncio.run(Security(app, hosts, TOKEN)(scope, None, send))  # type: ignore[arg-type]
    return int(sent[0]["status"])


@pytest.mark.parametrize(("cookie", "expected"), [
    (f"ppa-teach-8777={TOKEN}", 200),
    (f'prefs={{"a":1}}; ppa-teach-8777={TOKEN}', 200),
    (f"a b; =; c=\x01;ppa-teach-8777={TOKEN}; d", 200),
    (f"ppa-teach-8778={TOKEN}", 401),
    (f"prefs=ppa-teach-8777={TOKEN}", 401),
    (f"ppa-teach-8777=x{TOKEN}", 401),
])  # fmt: skip
def test_cookies_of_other_programs_do_not_matter(cookie: str, expected: int) -> None:
    assert status(_hosts("127.0.0.1", 8777), "/api/state", host="localhost:8777", cookie=cookie) == expected


@pytest.mark.parametrize(("asked", "port", "host", "expected"), [
    ("MyBox", 8777, "mybox:8777", 200),
    ("MyBox", 8777, "MYBOX:8777", 200),
    ("MyBox", 8777, "mybox", 421),
    ("MyBox", 80, "mybox", 200),
    ("MyBox", 80, "mybox:80", 200),
    ("::1", 80, "[::1]", 200),
    ("127.0.0.1", 80, "localhost", 200),
    ("Localhost", 8777, "127.0.0.1:8777", 200),
    ("127.0.0.1", 80, "localhost:8080", 421),
    ("127.0.0.1", 80, "evil.example", 421),
    ("127.0.0.1", 8080, "127.0.0.1:80", 421),
])  # fmt: skip
def test_hosts_as_browsers_write_them(asked: str, port: int, host: str, expected: int) -> None:
    hosts = _hosts(asked, port)
    assert status(hosts, query=f"token={TOKEN}", host=host) == expected
    assert status(hosts, query=f"token={TOKEN}", host=host, origin=f"http://{host}") == expected
