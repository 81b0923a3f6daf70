"""A session at an address of this machine until Ctrl-C."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from actstore.errors import InvalidInputError
from predictor.teach.app import build_app
from predictor.teach.desk import Desk
from predictor.teach.learner import Network
from predictor.teach.limits import Limits
from predictor.teach.session import Session

PORT = 8777
LOCAL = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::")


def serve(
    folder: Path, host: str, port: int | None, weights: Path | None, device: str, limits: Limits,
    opened: Callable[[str, Desk], None],
) -> None:  # fmt: skip
    """opened: called with the address when requests will be answered. port: None takes PORT, or any where that
    is taken."""
    session = Session(folder)  # first: a second server on it is refused before the network is loaded
    try:
        desk = Desk(session, Network(session.start.about.get("network", {}), weights, device), limits)
    except BaseException:
        session.close()
        raise
    try:
        listening = _listen(host, port)
    except BaseException:
        desk.close()
        raise
    number = listening.getsockname()[1]
    shown = socket.gethostname() if host in EVERYWHERE else host
    address = f"http://{_bracketed(shown)}:{number}/?token={session.token}"
    app = build_app(desk, _hosts(host, number), lambda: opened(address, desk))
    config = uvicorn.Config(
        app, http="h11", ws="none", lifespan="on", access_log=False, log_level="error", server_header=False,
        proxy_headers=False, limit_concurrency=limits.connections, timeout_keep_alive=30, timeout_graceful_shutdown=5,
    )  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int | None) -> socket.socket:
    is_v6 = ":" in host
    family, is_dual = socket.AF_INET6 if is_v6 else socket.AF_INET, is_v6 and socket.has_dualstack_ipv6()
    tries = (PORT, 0) if port is None else (port,)
    for number in tries:
        try:
            return socket.create_server((host, number), family=family, dualstack_ipv6=is_dual)
        except OSError as error:
            refusal = error
    raise InvalidInputError(
        f"cannot listen at {host}, port {tries[-1]}: {refusal.strerror or refusal}; choose another --port"
    )


def _hosts(host: str, port: int) -> list[str]:
    """What a browser may send as Host: the names of this machine, or the one address that was asked for."""
    if host in EVERYWHERE:
        own, addresses = socket.gethostname(), list[str]()
        with contextlib.suppress(OSError):
            addresses = [str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(own, None)]
        names: tuple[str, ...] = (*LOCAL, own, own.lower(), f"{own.lower()}.local", *addresses)
    else:
        names = (*LOCAL, host) if host.lower() in LOCAL else (host,)
    return [f"{_bracketed(name)}:{port}" for name in dict.fromkeys(names)]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
