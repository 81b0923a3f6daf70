"""`ppa teach` as a process of its own, and requests to it: for tests and benchmarks."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

import torch

from actstore.backbones.loading import load_backbone
from actstore.extraction.forward import activations_of
from actstore.images.glyphs import glyph_sets, write_glyphs

ROOT = Path(__file__).parents[1]


class TeachServer:
    """Started when it is entered. options: of `ppa teach`. threads: of the network. limits: others than usual."""

    def __init__(self, session: Path, *options: object, threads: int = 1, **limits: float) -> None:
        self.session = session
        code = (
            "from functools import partial; import predictor.teach.security as known; "
            f"known.Limits = partial(known.Limits, **{limits!r}); from cli.ppa import main; main()"
        )
        self._words = [sys.executable, "-c", code, "teach", "--session", str(session), "--no-browser", "--json",
                       *map(str, options)]  # fmt: skip
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)}

    def start(self) -> Self:
        port = [] if "--port" in self._words else ["--port", "0"]
        self.process = subprocess.Popen(
            [*self._words, *port], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self._environment
        )
        assert self.process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = self.process.stdout.readline()
            if not line:
                _, said = self.process.communicate()
                raise RuntimeError(f"ppa teach ended: {said}")
            text += line
        self.address = str(json.loads(text)["address"])
        parts = urlsplit(self.address)
        self.host, self.port, self.token = f"{parts.hostname}:{parts.port}", int(parts.port or 0), parts.query[6:]
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> str:
        """Returns what it said on stderr."""
        return self._end(signal.SIGINT)

    def _end(self, number: int) -> str:
        """Once: what is over stays so."""
        assert self.process.stdout is not None
        if self.process.stdout.closed:
            return ""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            _, said = self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, said = self.process.communicate()
        return str(said)

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, seconds: float = 60
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, JSON or bytes, headers (lower case); with the token, unless the headers say otherwise."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            sent = {"Host": self.host, "Authorization": f"Bearer {self.token}", **(headers or {})}
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            data = b"" if body is None else body
            if "Content-Length" not in sent and "Transfer-Encoding" not in sent and method != "GET":
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all was sent
                connection.send(data)
            response = connection.getresponse()
            found = response.read()
            told = {name.lower(): value for name, value in response.getheaders()}
        finally:
            connection.close()
        return response.status, json.loads(found) if "json" in told.get("content-type", "") else found, told

    def state(self) -> Any:
        return self._granted("GET", "/api/state")

    def act(self, **action: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        return self._granted("POST", "/api/actions", json.dumps(action).encode(), headers)["state"]

    def add(self, category: str, data: bytes, name: str = "image.png") -> Any:
        return self._granted("POST", f"/api/examples?{urlencode({'category': category, 'name': name})}", data)

    def ask(self, data: bytes) -> Any:
        return self._granted("POST", "/api/ask?name=asked.png", data)

    def get(self, path: str) -> Any:
        return self._granted("GET", path)

    def bring(self, data: bytes) -> Any:
        return self._granted("POST", "/api/import", data)

    def _granted(self, *given: Any) -> Any:
        status, found, _ = self.request(*given)
        assert status == 200, (status, found)
        return found


def glyph_record() -> dict[str, Any]:
    """Of a small network with drawn weights: what it makes of an image is always the same, if not clever."""
    backbone = load_backbone("small", random_weights=True)
    return {"backbone": "small", "weights": None, "weights_sha256": backbone.weights_sha256, "layer": "activations",
            "transform": backbone.transform.to_json(), "views": 1}  # fmt: skip


def write_glyph_classifier(path: Path, known: int = 8) -> None:
    """A classifier that knows the first glyphs, by a phi that is the identity."""
    from predictor.classifier.classifier import Classifier
    from predictor.classifier.classifier_file import save_classifier
    from predictor.phi.network import Phi, PhiSpec

    items = glyph_sets(known, 3, 0)["train"]
    rows, _, _ = activations_of(load_backbone("small", random_weights=True), items.items, torch.device("cpu"))
    means = rows.reshape(known, 3, -1).mean(1)
    phi = Phi(PhiSpec("phi1", means.shape[1])).eval().requires_grad_(False)
    save_classifier(path, Classifier.from_means(phi, items.classes, means, about={"network": glyph_record()}))


def glyph_files(folder: Path, categories: int = 12, of_each: int = 4) -> list[list[Path]]:
    """Images that no base category has, by category."""
    write_glyphs(folder, categories + 8, of_each, 0, 5)
    return [sorted(one.iterdir()) for one in sorted((folder / "train").iterdir())[8:]]
