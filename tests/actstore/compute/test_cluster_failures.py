"""Clusters that are not there, have no workers or other versions: one clear line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actstore.compute import cluster as module
from actstore.compute.cluster import connect, parse_address
from actstore.errors import ActstoreError, ClusterError
from actstore.extraction import build as extraction_task


def test_a_cluster_that_is_not_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.5)
    with (
        pytest.raises(ClusterError, match=r"no dask scheduler answers at tcp://127\.0\.0\.1:9; start one"),
        connect("tcp://127.0.0.1:9"),
    ):
        pass
    for text in ("10.0.0.1", "http://host:80", str(tmp_path / "none.json")):
        with pytest.raises(ClusterError):
            parse_address(text)
    (tmp_path / "s.json").write_text('{"address": "tcp://10.1.2.3:8786"}')
    assert parse_address(str(tmp_path / "s.json")) == "tcp://10.1.2.3:8786"
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ClusterError, match=r"pip install 'actstore\[cluster\]'"), connect(local=2):
        pass


def test_a_scheduler_without_workers_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    monkeypatch.setattr(module, "WORKER_SECONDS", 0.5)
    with (
        LocalCluster(n_workers=0, dashboard_address=":0") as empty,
        pytest.raises(ClusterError, match=r"has no workers.*start some with `dask worker tcp:"),
        connect(empty.scheduler_address),
    ):
        pass


class OtherVersions:
    """A client whose worker has another torch."""

    def get_versions(self, packages: tuple[str, ...]) -> Any:
        ours = {"distributed": "1", **dict.fromkeys(packages, "2")}
        workers = {"tcp://w:1": {"packages": {**ours, "torch": "3"}}}
        return {"client": {"packages": ours}, "scheduler": {"packages": {"distributed": "1"}}, "workers": workers}


def test_other_versions_and_workers_that_die_of_a_task_are_named() -> None:
    from distributed import CancelledError, KilledWorker

    with pytest.raises(ClusterError, match="tcp://w:1 has torch 3, this client 2; install the same versions"):
        module._require_same_versions(OtherVersions())
    worker: Any = type("Worker", (), {"address": "tcp://w:1"})
    for error, message in (
        (KilledWorker("extract-train-000003-ab", worker, 3), "extract-train-000003-ab was lost with 4 workers"),
        (CancelledError("gone"), "the dask scheduler was lost"),
    ):
        with pytest.raises(ActstoreError, match=message), module._clear_errors("extract-train"):
            raise error


def test_tasks_are_whole_batches_and_workers_find_their_gpu() -> None:
    assert extraction_task.task_ranges(0, 10, 4, 8) == [(0, 8), (8, 10)]
    assert extraction_task.task_ranges(9, 22, 4, 3) == [(8, 12), (12, 16), (16, 20), (20, 22)]
    assert extraction_task.task_ranges(0, 700, 32, 8192) == [(0, 256), (256, 512), (512, 700)]
    names = ("0", "5", "gpu-3", "node7-0", "tcp://10.0.0.3:40123", "w")
    assert [extraction_task.gpu_of(name, 4) for name in names] == [0, 1, 3, 0, 0, 0]
