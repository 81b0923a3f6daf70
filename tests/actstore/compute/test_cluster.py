"""Builds, means and verify on a cluster give the bytes of one process; killed workers and clients."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from actstore import statistics
from actstore.backbones.loading import Backbone, load_backbone
from actstore.backbones.weights import save_weights
from actstore.compute.cluster import Cluster, connect
from actstore.errors import ClusterError, InvalidInputError
from actstore.extraction.build import BuildOptions, build
from actstore.images.opening import open_images
from actstore.statistics import class_statistics
from actstore.upkeep.verify import verify_store
from tests.store_files import files

pytest.importorskip("distributed")


@pytest.fixture(scope="module", autouse=True)
def few_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with connect(local=2) as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random, folder = np.random.default_rng(0), tmp_path_factory.mktemp("images")
    for name in ("ant", "bee", "cat"):
        (folder / name).mkdir()
        for number in range(25):
            Image.fromarray(random.integers(0, 255, (40, 50, 3), np.uint8)).save(folder / name / f"{number:02d}.png")
    (folder / "bee/04.png").write_bytes(b"broken")  # so that rows and images differ in number
    return folder


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    first = next(name for name, _ in load_backbone("small", random_weights=True).module.named_modules() if name)
    return load_backbone("small", layers=["activations", first], random_weights=True)


OPTIONS = BuildOptions("cpu", 4, 0, layout={"chunk_rows": 8})


@pytest.fixture(scope="module")
def expected(folder: Path, backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    store = tmp_path_factory.mktemp("local") / "x.zarr"
    build(open_images(str(folder)), str(folder), store, backbone, OPTIONS)
    return files(store)


def kill_one(cluster: Cluster) -> None:
    """The worker that has most to do."""
    busy = cluster.client.processing()
    pids = cluster.client.run(os.getpid)
    os.kill(pids[max(pids, key=lambda worker: len(busy.get(worker, ())))], signal.SIGKILL)


class Stop(Exception):
    """In the middle of a build."""


def test_a_build_survives_a_killed_worker_with_the_same_bytes(
    cluster: Cluster, folder: Path, backbone: Backbone, expected: dict[str, bytes], tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill_once(split: str, done: int, total: int) -> None:
        if not killed:
            assert done < total / 2
            killed.append(done)
            kill_one(cluster)

    store = build(open_images(str(folder)), str(folder), tmp_path / "x.zarr", backbone, OPTIONS, kill_once, cluster)
    assert killed
    assert len(store["train"]) == 74
    assert files(store.path) == expected


def test_a_build_that_began_here_goes_on_there(
    cluster: Cluster, folder: Path, backbone: Backbone, expected: dict[str, bytes], tmp_path: Path
) -> None:
    def stop(split: str, done: int, total: int) -> None:
        if done > 30:
            raise Stop

    arguments: Any = (open_images(str(folder)), str(folder), tmp_path / "x.zarr", backbone, OPTIONS)
    with pytest.raises(Stop):
        build(*arguments, stop)
    assert files(tmp_path / "x.zarr") != expected
    build(*arguments, cluster=cluster)
    assert files(tmp_path / "x.zarr") == expected


def thread_count(task: int) -> int:
    return torch.get_num_threads()


def test_workers_use_as_many_threads_as_the_client(cluster: Cluster, tmp_path: Path, backbone: Backbone) -> None:
    """On which the last bits of some networks depend."""
    torch.set_num_threads(3)
    try:
        build(open_images("glyphs:2x4x1"), "glyphs:2x4x1", tmp_path / "x.zarr", backbone, OPTIONS, cluster=cluster)
    finally:
        torch.set_num_threads(1)
    assert 3 in set(cluster.map("threads", thread_count, range(8)))


CLIENT = """
import sys
from pathlib import Path
from actstore.backbones.loading import load_backbone
from actstore.compute.cluster import connect
from actstore.extraction.build import BuildOptions, build
from actstore.images.opening import open_images
address, folder, store, *layers = sys.argv[1:]
options = BuildOptions("cpu", 4, 0, layout={"chunk_rows": 8})
backbone = load_backbone("small", layers=layers, random_weights=True)
def progress(split, done, total):
    if done > 20:
        print("half", flush=True)
        sys.stdin.read()
with connect(address) as cluster:
    build(open_images(folder), folder, Path(store), backbone, options, progress, cluster)
"""


def test_a_killed_client_is_resumed_here_to_the_same_bytes(
    cluster: Cluster, folder: Path, backbone: Backbone, expected: dict[str, bytes], tmp_path: Path
) -> None:
    address, store = cluster.client.scheduler.address, tmp_path / "x.zarr"
    command = [sys.executable, "-c", CLIENT, address, str(folder), str(store), *backbone.layers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"half\n"
        child.send_signal(signal.SIGKILL)
    assert files(store) != expected
    build(open_images(str(folder)), str(folder), store, backbone, OPTIONS)
    assert files(store) == expected


@pytest.mark.numeric
def test_means_are_the_same_here_there_and_with_a_killed_worker(
    cluster: Cluster, make_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "_LEAST_BYTES", 1)
    monkeypatch.setattr(statistics, "_RATIO", 0.1)
    done: list[int] = []

    def kill_once(rows: int) -> None:
        if not done:
            kill_one(cluster)
        done.append(rows)

    store = make_store(rows=6000, chunk_rows=32)
    class_statistics(store["train"], kill_once, cluster)
    assert len(done) > 20
    assert sum(done) == 6000
    found = files(store.path)
    for name in ("class_count", "class_mean", "class_var"):
        metadata = store.path / "train" / name / "zarr.json"
        metadata.write_text(metadata.read_text().replace("sha256:", "sha256:0"))
    class_statistics(store["train"])
    assert files(store.path) == found


def test_verify_finds_the_same_faults(cluster: Cluster, make_store: Any) -> None:
    store = make_store(rows=1000, sort=True)
    (store.path / "train/activations/c/3/0").unlink()
    chunk = store.path / "train/activations/c/7/0"
    chunk.write_bytes(bytes([chunk.read_bytes()[0] ^ 1]) + chunk.read_bytes()[1:])
    rows: list[int] = []
    faults = verify_store(store, rows.append, cluster)
    assert faults == verify_store(store)
    assert [(fault.chunk, fault.kind) for fault in faults] == [(3, "missing"), (7, "corrupt")]
    assert sum(rows) == 1000


def said(*arguments: Any) -> str:
    with pytest.raises(InvalidInputError) as error:
        build(*arguments)
    return str(error.value)


def test_refusals_are_those_of_a_local_build(cluster: Cluster, folder: Path, tmp_path: Path) -> None:
    """A row beyond fp16 by its number, an unreadable image by its name; other weights by their hash."""
    weights, strong = tmp_path / "w.safetensors", load_backbone("small", random_weights=True)
    save_weights(weights, strong.module, "small")
    with torch.no_grad():
        for parameter in strong.module.parameters():
            parameter.mul_(30)
    large = tmp_path / "large.safetensors"
    save_weights(large, strong.module, "small")
    images: Any = (open_images(str(folder)), str(folder))
    options = BuildOptions("cpu", 4, 0, weights=str(large), layout={"chunk_rows": 8})
    here = said(*images, tmp_path / "a.zarr", load_backbone("small", large), options)
    assert "beyond fp16's" in here
    assert said(*images, tmp_path / "b.zarr", load_backbone("small", large), options, None, cluster) == here

    chosen = load_backbone("small", weights)
    options = BuildOptions("cpu", 4, 0, "fail", weights=str(weights))
    here = said(*images, tmp_path / "c.zarr", chosen, options)
    assert "bee/04.png" in here
    assert said(*images, tmp_path / "d.zarr", chosen, options, None, cluster) == here

    there = said(*images, tmp_path / "e.zarr", chosen, BuildOptions("cpu", 4, weights=str(large)), None, cluster)
    assert "worker" in there
    assert f"the weights of small in {large} are not those" in there
    there = said(*images, tmp_path / "f.zarr", chosen, BuildOptions("cpu", weights="gone.pth"), None, cluster)
    assert "cannot load the backbone" in there
    assert "gone.pth" in there


def key_of_task(task: int) -> tuple[int, str]:
    from distributed import get_worker

    return task, str(get_worker().get_current_task())


def fail(task: int) -> None:
    raise ZeroDivisionError(f"no {task}")


def test_results_come_in_order_under_a_name_and_few_are_in_flight(cluster: Cluster) -> None:
    from distributed.utils import key_split

    taken: list[int] = []
    results = cluster.map("sum-train", key_of_task, (taken.append(n) or n for n in range(100)))  # type: ignore[func-returns-value]
    task, key = next(results)
    assert task == 0
    assert key.startswith("sum-train-000000-")
    assert key_split(key) == "sum-train"
    assert len(taken) <= 6
    assert [task for task, _ in results] == list(range(1, 100))
    with pytest.raises(ClusterError, match="broken failed on a worker: ZeroDivisionError: no 0"):
        list(cluster.map("broken", fail, [0]))
