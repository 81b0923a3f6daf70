"""Object storage on loopback: obstore against fsspec, what a random row fetches, and the cache against a local store.

The server is moto's, a Python program on the same two cores: rates say what a client costs, not what S3 gives.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
import numpy as np

import actstore
from actstore.compute.process import Result
from actstore.storage import bucket_client as buckets
from actstore.storage.object_path import ObjectPath
from actstore.upkeep.verify import verify_store
from tests.bench.common import OUT, report
from tests.object_storage import CountingProxy, S3Server, running_server

CHUNK = 32 << 20
TAKE = 900
RANGES = 100  # moto reads a whole object for each range of it


@click.command()
@click.option("--rows", type=int, default=128_000, show_default=True)
@click.option("--dim", type=int, default=2048, show_default=True)
@click.option("--turns", type=int, default=5, show_default=True)
def main(rows: int, dim: int, turns: int) -> None:
    with running_server() as server:
        server.create_bucket("bench")
        records = compare_clients(turns) + compare_stores(server, rows, dim, turns)
    bars = ("a take fetches < 0.1x of the store", "the warm cache >= 0.8x of a local store")
    report("remote", records, bars)


def compare_clients(turns: int) -> list[Result]:
    """Wall and client CPU seconds of both libraries, in turns: a chunk put, a chunk got, single rows of a chunk."""
    body = np.random.default_rng(0).integers(0, 255, CHUNK, np.uint8).tobytes()
    starts = (np.random.default_rng(1).choice(CHUNK // 4096, RANGES, replace=False) * 4096).tolist()
    sides = {"obstore": obstore_calls(body, starts), "s3fs": fsspec_calls(body, starts)}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for _ in range(turns):
        for side, calls in sides.items():
            for name, call in calls.items():
                found.setdefault(name, {}).setdefault(side, []).append(timed(call))
    records = []
    for name, by_side in found.items():
        for what, part in (("wall", 0), ("client CPU", 1)):
            ours, theirs = (statistics.median(one[part] for one in by_side[side]) for side in ("obstore", "s3fs"))
            records.append(Result(f"{name}, {what}", ours, "s", "s3fs", theirs, theirs / ours))
    return records


def obstore_calls(body: bytes, starts: Sequence[int]) -> dict[str, Callable[[], Any]]:
    place = ObjectPath.parse("s3://bench/obstore")
    stops = [start + 4096 for start in starts]
    return {
        "put a 32 MiB chunk": lambda: place.put(body),
        "get a 32 MiB chunk": lambda: place.read_version(),
        f"get {RANGES} rows of 4 KiB": lambda: place.read_ranges(starts, stops),
    }


def fsspec_calls(body: bytes, starts: Sequence[int]) -> dict[str, Callable[[], Any]]:
    import s3fs

    files = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    path = "bench/s3fs"
    names, stops = [path] * len(starts), [start + 4096 for start in starts]
    return {
        "put a 32 MiB chunk": lambda: files.pipe_file(path, body),
        "get a 32 MiB chunk": lambda: files.cat_file(path),
        f"get {RANGES} rows of 4 KiB": lambda: files.cat_ranges(names, starts, stops),
    }


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Wall seconds, and CPU seconds of this process with its threads."""

    def processor() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    wall, cpu = time.perf_counter(), processor()
    call()
    return time.perf_counter() - wall, processor() - cpu


def compare_stores(server: S3Server, rows: int, dim: int, turns: int) -> list[Result]:
    """Random rows: bytes fetched from the default remote layout, and the warm cache beside a local store."""
    local, cache, remote = OUT / "remote-local.zarr", OUT / "remote-cache", "s3://bench/x.zarr"
    for path in (local, cache):
        shutil.rmtree(path, ignore_errors=True)
    values = np.random.default_rng(2).random((rows, dim), dtype=np.float32).astype(np.float16)
    labels = np.arange(rows) % 1000
    begin = time.perf_counter()
    actstore.from_arrays(remote, {"train": (values, labels)})
    built = time.perf_counter() - begin
    here = actstore.from_arrays(local, {"train": (values, labels)})["train"]
    stored = rows * dim * 2
    fetched = bytes_of_take(server, remote, rows)
    cached = actstore.open(remote, cache=cache)["train"]
    for start in range(0, rows, 8192):
        cached.take(np.arange(start, min(rows, start + 8192)))  # every chunk is touched once
    begin = time.perf_counter()
    assert verify_store(actstore.open(remote)) == []
    verified = time.perf_counter() - begin
    ours, theirs = rates(cached, here, rows, turns)
    for path in (local, cache):
        shutil.rmtree(path)
    return [
        Result("import to the bucket", stored / built / 1e6, "MB/s"),
        Result("verify in the bucket", stored / verified / 1e6, "MB/s"),
        Result(f"take of {TAKE} random rows fetches", fetched, "B", "all activations", stored, fetched / stored),
        Result(f"take of {TAKE} random rows, warm cache", ours, "rows/s", "local store", theirs, ours / theirs),
    ]


def bytes_of_take(server: S3Server, place: str, rows: int) -> int:
    """All that comes back from the server for one take, HTTP headers included."""
    proxy = CountingProxy(server.port)
    before = os.environ["AWS_ENDPOINT_URL"]
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{proxy.port}"
    buckets._connect.cache_clear()  # a new client, through the proxy
    train = actstore.open(place)["train"]
    proxy.fetched = 0
    train.take(np.random.default_rng(3).choice(rows, TAKE, replace=False))
    os.environ["AWS_ENDPOINT_URL"] = before
    buckets._connect.cache_clear()
    fetched = proxy.fetched
    proxy.close()
    return fetched


def rates(cached: Any, local: Any, rows: int, turns: int) -> tuple[float, float]:
    """Median rows/s of both sides, in turns over the same rows."""
    found: dict[str, list[float]] = {"cached": [], "local": []}
    for turn in range(40 * turns):
        wanted = np.random.default_rng([4, turn]).integers(0, rows, TAKE)
        for name, split in (("cached", cached), ("local", local)):
            begin = time.perf_counter()
            split.take(wanted)
            found[name].append(TAKE / (time.perf_counter() - begin))
    return statistics.median(found["cached"]), statistics.median(found["local"])


if __name__ == "__main__":
    main()
