"""`--scheduler` and `--local-cluster` as a user gives them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest
import torch
from PIL import Image

from actstore.parallel import cluster as module
from cli.actstore import main
from tests.store_files import files

pytest.importorskip("distributed")
SMALL = ("--backbone", "small", "--random-weights", "--device", "cpu", "--batch-size", 2, "--chunk-rows", 4)


def run(*arguments: Any, code: int = 0) -> click.testing.Result:
    result = click.testing.CliRunner().invoke(main, [str(one) for one in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with module.connect(local=1) as cluster:
        yield cluster.client.scheduler.address


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        Path("photos", name).mkdir(parents=True)
        for number in range(6):
            Image.fromarray(random.integers(0, 255, (40, 50, 3), np.uint8)).save(f"photos/{name}/{number}.png")
    Path("photos/dog/6.jpg").write_bytes(b"")
    return Path("photos")


def test_build_means_and_verify_on_a_cluster_are_those_of_one_process(photos: Path, address: str) -> None:
    """The images are named relative to a folder that the worker is not in."""
    there = run("build", photos, "there.zarr", *SMALL, "--scheduler", address, "--json")
    result = json.loads(there.stdout)
    assert (result["rows"], result["skipped"]) == ({"train": 12}, 1)
    assert "cluster of 1 workers" in there.stderr
    run("build", photos, "here.zarr", *SMALL, "--workers", 0)
    assert files("there.zarr") == files("here.zarr")
    run("means", "there.zarr", "--scheduler", address)
    run("means", "here.zarr")
    assert files("there.zarr") == files("here.zarr")
    assert "every chunk is whole" in run("verify", "there.zarr", "--scheduler", address).stdout
    Path("there.zarr/train/activations/c/1/0").unlink()
    assert "missing: train/activations chunk 1" in run("verify", "there.zarr", "--scheduler", address, code=1).stdout


def test_a_local_cluster_comes_and_goes_with_the_command(make_store: Any) -> None:
    said = run("verify", make_store(rows=200).path, "--local-cluster", 1)
    assert "cluster of 1 workers" in said.stderr
    assert "every chunk is whole" in said.stdout


def test_errors_are_one_clear_line(photos: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.5)
    for arguments, code, message in (
        (("--scheduler", "tcp://127.0.0.1:9"), 1, "no dask scheduler answers at tcp://127.0.0.1:9; start one"),
        (("--scheduler", "node7"), 1, "must be like tcp://10.0.0.1:8786, got 'node7'"),
        (("--scheduler", address, "--local-cluster", 2), 2, "exclude each other"),
        (("--scheduler", address, "--on-error", "fail"), 1, "dog/6.jpg: the file is empty (--on-error skip"),
        (("--scheduler", address, "--device", "tpu"), 1, "device must be auto"),
    ):
        result = run("build", photos, "x.zarr", *SMALL, *arguments, code=code)
        assert message in result.stderr.splitlines()[-1]
