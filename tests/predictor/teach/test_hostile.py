"""Requests that nobody should send: each is refused with its status, memory stays bounded, the server still answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.predictor.teach.hostile import LIMITS, REQUESTS, Hostile, picture
from tests.teach_server import TeachServer

MOST_GROWTH = 250 << 20  # bytes of resident memory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, start_file: Path) -> Iterator[TeachServer]:
    folder = tmp_path_factory.mktemp("hostile")
    with TeachServer(folder / "s", "--classifier", start_file, **LIMITS) as running:
        before = peak(running)
        yield running
        assert running.ask(picture())["bars"]
        assert peak(running) - before < MOST_GROWTH
        assert running.state()["categories"] == []  # nothing that was refused left a trace
        assert {path.name for path in folder.iterdir()} == {"s"}
        assert not list((folder / "s" / "images").iterdir())
        assert not list((folder / "s").glob("away-*"))


def peak(server: TeachServer) -> int:
    """Of a process on Linux; elsewhere nothing is known, and nothing grows."""
    status = Path(f"/proc/{server.process.pid}/status")
    if not status.exists():
        return 0
    return 1024 * int(next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")))


def test_there_are_forty_of_them() -> None:
    assert len({one.name for one in REQUESTS}) == len(REQUESTS) >= 40


@pytest.mark.parametrize("hostile", REQUESTS, ids=lambda one: one.name)
def test_a_hostile_request_is_refused(server: TeachServer, hostile: Hostile) -> None:
    def filled(text: str) -> str:
        return text.replace("TOKEN", server.token).replace("HOST", server.host).replace("PORT", str(server.port))

    headers = {name: value and filled(value) for name, value in hostile.headers.items()}
    status, found, told = server.request(hostile.method, filled(hostile.path), hostile.body(), headers)
    assert status == hostile.status, found
    if isinstance(found, dict):
        assert list(found) == ["error"]
        assert 0 < len(found["error"]) < 300
        assert "Traceback" not in found["error"]
        assert "\n" not in found["error"]
        assert "default-src 'none'" in told["content-security-policy"]
    assert "access-control-allow-origin" not in told
    assert server.state()["known"] == 8


def test_two_hosts_and_no_http_at_all(server: TeachServer) -> None:
    for text in (
        f"GET /api/state HTTP/1.1\r\nHost: {server.host}\r\nHost: evil.example\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "\x16\x03\x01\x02 hello",
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(text.encode("latin-1"))
            assert connection.recv(4096)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 421")
    assert server.state()["known"] == 8


def test_connections_that_are_left_open_do_not_keep_others_out_for_good(server: TeachServer) -> None:
    held = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(100)]
    for connection in held:
        connection.close()
    for _ in range(100):  # the server notices one after the other, and refuses with 503 until then
        status, _, _ = server.request("GET", "/api/state")
        if status == 200:
            break
        assert status == 503
        time.sleep(0.1)
    assert status == 200


def test_bodies_that_stop_are_forgotten(server: TeachServer) -> None:
    """Five at once, more than are read at a time."""
    head = f"POST /api/ask HTTP/1.1\r\nHost: {server.host}\r\nAuthorization: Bearer {server.token}\r\n"
    held = []
    for _ in range(5):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        connection.sendall(f"{head}Content-Length: 100000\r\n\r\nabc".encode())
        held.append(connection)
    held.pop().close()  # one gives up, the others wait until the server does
    answers = [connection.recv(4096) for connection in held]
    assert [one[:12] for one in answers] == [b"HTTP/1.1 408"] * 4
    for connection in held:
        connection.close()
    assert server.ask(picture())["bars"]
