"""A real S3 server on loopback (moto's), and a proxy in front of it that counts what is fetched."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

import actstore

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


class S3Server:
    """moto's server in a process of its own."""

    def __init__(self) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "moto.server", "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._await()

    def _await(self) -> None:
        for _ in range(300):
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError("moto's server did not start")

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}

    def create_bucket(self, name: str) -> None:
        self._send("PUT", name)

    def require_credentials(self, required: bool) -> None:
        """Whether requests must be signed by somebody the server knows: it knows nobody."""
        self._send("POST", "moto-api/reset-auth", b"0" if required else b"inf")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _send(self, method: str, path: str, body: bytes = b"") -> None:
        url = f"http://127.0.0.1:{self.port}/{path}"
        headers = {"Content-Type": "application/octet-stream"}
        with urllib.request.urlopen(urllib.request.Request(url, body or None, headers, method=method), timeout=30):
            pass


@contextmanager
def running_server() -> Iterator[S3Server]:
    """A server whose clients are configured by the environment of this process meanwhile."""
    server = S3Server()
    before = dict(os.environ)
    os.environ.update(server.environment)
    try:
        yield server
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.stop()


class CountingProxy:
    """Passes connections on to a port and counts the bytes that come back."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.fetched = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        """Both ways, until either side ends."""
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self._target)) as server:
            other = {client: server, server: client}
            while True:
                for source in select.select(list(other), [], [])[0]:
                    if not (data := source.recv(1 << 16)):
                        return
                    if source is server:
                        with self._lock:
                            self.fetched += len(data)
                    other[source].sendall(data)


class CuttingProxy(CountingProxy):
    """Cuts the answers to the next requests that hold `word` short, `times` of them: the connection ends amid one."""

    def __init__(self, target: int, word: bytes, times: int) -> None:
        self._word, self.times = word, times
        super().__init__(target)

    def _pass(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self._target)) as server:
            is_cut = False
            while True:
                for source in select.select([client, server], [], [])[0]:
                    if not (data := source.recv(1 << 16)):
                        return
                    if source is client:
                        with self._lock:
                            is_cut = self._word in data and self.times > 0
                            self.times -= is_cut
                        server.sendall(data)
                        continue
                    head, _, body = data.partition(b"\r\n\r\n")
                    client.sendall(head + b"\r\n\r\n" + body[:40] if is_cut else data)
                    if is_cut:
                        return


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


LABELS = np.arange(1000) % 7
IDS = [f"c{row % 7}/{row}.jpg" for row in range(1000)]


def store_at(place: str, rows: NDArray[np.float16], **options: Any) -> actstore.ActivationStore:
    """A store of 1000 rows in chunks of 96."""
    return actstore.from_arrays(place, {"train": (rows, LABELS, IDS)}, chunk_rows=96, **options)
