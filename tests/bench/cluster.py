"""Builds on two worker processes: their rate beside a local build, killed workers, and what one client can write.

The images are mini-ImageNet's from $ACTSTORE_DATA (default ../shared/data); weights are random, which costs the same.
On one machine a cluster has the same cores as a local build, so that the rates show what handing out work costs.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch

import actstore
from actstore.backbones.loading import Backbone, load_backbone
from actstore.compute.cluster import Cluster, connect
from actstore.compute.process import Result, seconds
from actstore.extraction.build import BuildOptions, build
from actstore.extraction.forward import Batch
from actstore.images.decode import ImageFacts
from actstore.images.opening import open_images
from tests.bench.build import unpack
from tests.bench.common import OUT, alternate, digest, rate, report

IMAGES, KILLS, ROUNDS = 256, 10, 2
ROWS, DIM, BATCH, TASK = 65_536, 2048, 32, 1024


def run(folder: Path, store: Path, backbone: Backbone, cluster: Cluster | None, **options: Any) -> None:
    shutil.rmtree(store, ignore_errors=True)
    chosen = BuildOptions("cpu", BATCH, 1, **options)
    build(open_images(str(folder)), str(folder), store, backbone, chosen, cluster=cluster)


def rates(cluster: Cluster) -> list[Result]:
    """On one thread each: two workers of two threads would only fight over two cores."""
    folder, backbone = unpack(IMAGES), load_backbone("resnet18", random_weights=True)
    here, there = OUT / "here.zarr", OUT / "there.zarr"
    torch.set_num_threads(1)  # which the workers take over
    taken = alternate(
        {
            "cluster": lambda: run(folder, there, backbone, cluster, layout={"chunk_rows": 32}),
            "local": lambda: run(folder, here, backbone, None, layout={"chunk_rows": 32}),
        },
        ROUNDS,
    )
    assert digest(here) == digest(there), "a store built on a cluster differs"
    for store in (here, there):
        shutil.rmtree(store)
    name = "build, resnet18, 2 workers of one thread"
    return [rate(name, taken["cluster"], "local, one thread", taken["local"], IMAGES, "images/s")]


def kills(cluster: Cluster) -> list[Result]:
    """A random worker at a random moment of each build; the nanny starts another in its place."""
    folder, backbone, random = unpack(512), load_backbone("small", random_weights=True), np.random.default_rng(0)
    whole, killed = OUT / "whole.zarr", OUT / "killed.zarr"
    layout = {"chunk_rows": 64}
    run(folder, whole, backbone, None, layout=layout)
    duration = seconds(lambda: run(folder, killed, backbone, cluster, layout=layout))
    expected, done = digest(whole), 0
    while done < KILLS:
        cluster.client.wait_for_workers(2, timeout=60)
        pid = int(random.choice(list(cluster.client.run(os.getpid).values())))
        timer = threading.Timer(random.uniform(0, duration), os.kill, (pid, signal.SIGKILL))
        timer.start()
        run(folder, killed, backbone, cluster, layout=layout)
        done += not timer.is_alive()  # else it would have come after the end
        timer.cancel()
        assert digest(killed) == expected, "a store differs after a worker was killed"
    for store in (whole, killed):
        shutil.rmtree(store)
    return [Result("workers killed in mid-build, all stores byte-identical", done, "times")]


def ready_rows(first: int) -> list[Batch]:
    """What a task of extraction returns, without the work."""
    rows, facts = np.ones((BATCH, DIM), np.float16), [ImageFacts(32, 32)] * BATCH
    return [
        Batch(list(range(start, start + BATCH)), [], facts, rows={"activations": rows.copy()})
        for start in range(first, first + TASK, BATCH)
    ]


def capacity(cluster: Cluster) -> list[Result]:
    """Rows that one client takes from its workers and writes."""

    def write() -> None:
        shutil.rmtree(OUT / "capacity.zarr", ignore_errors=True)
        store = actstore.create(OUT / "capacity.zarr", classes=["a"], dim=DIM)
        with store.writer("train") as writer:
            for batches in cluster.map("rows", ready_rows, range(0, ROWS, TASK)):
                for batch in batches:
                    ids = [f"{position}.jpg" for position in batch.positions]
                    writer.append(batch.rows["activations"], np.zeros(BATCH, np.int64), ids)

    taken = alternate({"write": write}, ROUNDS)["write"]
    shutil.rmtree(OUT / "capacity.zarr")
    return [
        Result("rows that one client takes and writes", ROWS / taken, "rows/s"),
        Result("the same", ROWS * DIM * 2 / taken / 1e6, "MB/s"),
    ]


def main() -> None:
    with connect(local=2) as cluster:
        results = [*capacity(cluster), *rates(cluster), *kills(cluster)]
    report("cluster", results, ["byte-identical to a local build, also after killed workers"])


if __name__ == "__main__":
    main()
