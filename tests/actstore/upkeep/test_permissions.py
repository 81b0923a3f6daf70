"""What another user may not read: named as that, never taken for damaged, and nothing is hidden without being asked."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import actstore
from actstore.audit.auditing import audit_store
from actstore.errors import StorageError
from actstore.search.bounded import BoundedSearch
from actstore.upkeep.repair import repair_faults
from actstore.upkeep.verify import verify_store

NOBODY = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    """A store with all that is kept beside it, where every user may look; pytest's own folders are the user's alone."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        values = np.random.default_rng(0).standard_normal((3000, 32)).astype(np.float16)
        before = os.umask(0o022)
        try:
            store = actstore.from_arrays(f"{folder}/x.zarr", {"train": (values, np.arange(3000) % 3)})
            store["train"].search(values[:1], k=1)
            BoundedSearch.build(store["train"])
            audit_store(store)
        finally:
            os.umask(before)
        yield Path(folder) / "x.zarr"


@contextmanager
def another_user() -> Iterator[None]:
    """Permissions mean nothing to root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_what_lies_beside_a_store_is_readable_as_the_store_is(place: Path) -> None:
    files = [path for path in place.parent.rglob("*") if path.is_file()]
    assert any(path.name.startswith("norms.") for path in files)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o644}
    with another_user():
        assert verify_store(actstore.open(place)) == []


def test_files_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o007)
    try:
        split = actstore.from_arrays(tmp_path / "x.zarr", {"train": (np.ones((5, 4), "f2"), None)})["train"]
        split.search(np.ones((1, 4)), k=1)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()} == {0o660}


@pytest.mark.parametrize(
    "hidden",
    ["x.zarr/train/zarr.json", "x.zarr/train/activations/ledger.jsonl", "x.zarr/train/activations/c/0/0",
     "x.zarr/train/activations/zarr.json", "x.zarr/train/labels/c/0", "x.zarr/train/labels", "x.zarr/train",
     "x.zarr/train/activations", "x.zarr.search/train/norms.json", "x.zarr.search/train/norms.*.safetensors",
     "x.zarr.audit/audit.safetensors", "x.zarr.search"],
)  # fmt: skip
def test_verify_names_what_it_may_not_read(place: Path, hidden: str) -> None:
    (path,) = place.parent.glob(hidden)
    contents = {file: file.read_bytes() for file in place.parent.rglob("*") if file.is_file()}
    store, mode = actstore.open(place), stat.S_IMODE(path.stat().st_mode)
    path.chmod(0)
    try:
        with another_user():
            faults = verify_store(store)
        assert {fault.kind for fault in faults} == {"unreadable"}
        assert "denied" in faults[0].detail
        repair_faults(store, [fault for fault in faults if fault.array != "zarr.json"])
    finally:
        path.chmod(mode)
    assert {file: file.read_bytes() for file in place.parent.rglob("*") if file.is_file()} == contents
    assert verify_store(store) == []


def test_an_unreadable_store_is_not_called_damaged(place: Path) -> None:
    (place / "zarr.json").chmod(0)
    with another_user(), pytest.raises(StorageError, match=r"cannot read .*zarr\.json"):
        actstore.open(place)
