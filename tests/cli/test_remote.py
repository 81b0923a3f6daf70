"""The commands on a real S3 server: a killed client, wrong credentials, a bucket that is not there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore.layout.ledger import read_ledger
from actstore.storage.object_path import ObjectPath
from tests.cli.conftest import invoke
from tests.object_storage import S3Server

FEW = ("--rows", "100", "--dim", "8")
BUILD = "glyphs:12x50x4"
OPTIONS = ("--backbone", "small", "--random-weights", "--chunk-rows", "48", "--batch-size", "16", "--workers", "0")


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("actstore")), *arguments]


def run_here(*arguments: Any, code: int = 0) -> Any:
    from cli.actstore import main

    return invoke(main, arguments, code)


def objects(place: ObjectPath) -> dict[str, bytes]:
    """Everything below a place, by its name there."""
    found = {}
    for entry in place.iterdir():
        if entry.exists():
            found[entry.name] = entry.read_bytes()
        else:
            found |= {f"{entry.name}/{name}": data for name, data in objects(entry).items()}
    return found


@pytest.mark.slow
def test_a_build_that_was_killed_resumes(s3: S3Server) -> None:
    s3.create_bucket("builds")
    whole, killed = "s3://builds/whole.zarr", "s3://builds/killed.zarr"
    run_here("build", BUILD, whole, *OPTIONS)
    for chunks in (2, 6):
        client = subprocess.Popen(command("build", BUILD, killed, *OPTIONS), stderr=subprocess.DEVNULL)
        array = ObjectPath.parse(killed) / "train" / "activations"
        while client.poll() is None and len(read_ledger(array)[0]) < chunks:
            time.sleep(0.02)
        assert client.poll() is None, "the build ended before it could be killed"
        os.kill(client.pid, signal.SIGKILL)
        client.wait()
        assert json.loads(run_here("verify", killed, "--json").stdout)["incomplete"] == ["train"]
    run_here("build", BUILD, killed, *OPTIONS)
    run_here("verify", killed)
    assert objects(ObjectPath.parse(killed)) == objects(ObjectPath.parse(whole))


def test_wrong_credentials_give_one_line(s3: S3Server, monkeypatch: Any) -> None:
    s3.create_bucket("private")
    s3.require_credentials(True)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    try:
        for arguments in (("info", "s3://private/x.zarr"), ("synth", "s3://private/x.zarr", *FEW)):
            refused = run_here(*arguments, code=1)
            assert "access denied" in refused.stderr
            assert "check AWS_ACCESS_KEY_ID" in refused.stderr
    finally:
        s3.require_credentials(False)


def test_a_bucket_that_is_not_there_gives_one_line(s3: S3Server) -> None:
    for arguments in (("means", "s3://vanished/x.zarr"), ("synth", "s3://vanished/x.zarr", *FEW)):
        assert "there is no bucket 'vanished'" in run_here(*arguments, code=1).stderr


def test_each_stage_runs_in_a_bucket(s3: S3Server, tmp_path: Path, random: Any, ppa: Any) -> None:
    s3.create_bucket("stages")
    place, cache = "s3://stages/x.zarr", str(tmp_path / "cache")
    rows = random.random((300, 64), dtype=np.float32)
    np.savez(tmp_path / "a.npz", train=rows, train_labels=np.arange(300) % 5)
    np.savez(tmp_path / "b.npz", train=rows[:40], train_labels=np.arange(40) % 5)
    for arguments in (
        ("import", tmp_path / "a.npz", place, "--dtype", "f4"),
        ("append", tmp_path / "b.npz", place),
        ("means", place, "--cache", cache),
        ("verify", place),
        ("query", place, "--class", "3"),
        ("search", place, "--row", "7", "--cache", cache, "--cache-size", "1G"),
        ("export", place, tmp_path / "out.npy"),
        ("info", place),
    ):
        run_here(*arguments, "--json")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), np.concatenate([rows, rows[:40]]))
    ppa("train", "--phi", "phi1", "--store", place, "--cache", cache, "--epochs", "1", "--batches", "3",
        "--out", tmp_path / "phi1", "--json")  # fmt: skip
    assert list(Path(cache).glob("*/train/*-*")), "the cache that was named holds no chunk"
    assert actstore.open(place, cache=cache)["train"].take([339]).shape == (1, 64)


def test_a_size_that_is_none(tmp_path: Path) -> None:
    wrong = run_here("info", "s3://bucket/x.zarr", "--cache", tmp_path, "--cache-size", "lots", code=1)
    assert "such as 20G" in wrong.stderr
