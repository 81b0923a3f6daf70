"""Shared fixtures: small stores, and the real data where it is."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from tests.object_storage import S3Server, running_server

REAL_DATA = Path(os.environ.get("ACTSTORE_DATA", Path(__file__).parents[2] / "shared" / "data"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with a slow test come first, so that no process works on one alone after the others have ended."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Tests kill processes, not machines: what was written is there whether it was flushed or not, and flushing takes
    milliseconds a file. Programs that tests start flush as usual."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: os.fstat(descriptor) and None)  # a closed file still fails
        yield


@pytest.fixture(autouse=True, scope="session")
def _nothing_is_fetched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test asks the internet, or depends on what torch has downloaded on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACTSTORE_OFFLINE", "1")
        patch.setenv("TORCH_HOME", str(tmp_path_factory.mktemp("torch")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _accelerators_are_known() -> None:
    """Autograd counts the devices when it first runs, so simulated ones are registered before any test trains."""
    from tests import simulated_accelerator

    if simulated_accelerator.CAN_BE_SIMULATED:
        simulated_accelerator.install()


@pytest.fixture(autouse=True, scope="session")
def _interrupts_are_heard() -> None:
    """A shell starts what runs in the background with SIGINT ignored, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _torch_is_seeded() -> None:
    """`torch.rand` gives a test the same values alone, in the suite and on the next machine."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(7)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch on one thread, so that small products are quick and the same beside other work."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A machine with two simulated accelerators, sim:0 and sim:1, and what they counted; see the module."""
    from tests import simulated_accelerator

    if not simulated_accelerator.CAN_BE_SIMULATED:
        pytest.skip("this torch cannot have an accelerator in Python")
    with simulated_accelerator.available(monkeypatch) as module:
        yield module


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def make_store(tmp_path: Path, random: np.random.Generator) -> Callable[..., actstore.ActivationStore]:
    """A store of random rows; values and labels are kept as attributes for comparison."""

    def make(rows: int = 1000, dim: int = 64, classes: int = 7, name: str = "x.zarr", **options: Any) -> Any:
        values = random.random((rows, dim), dtype=np.float32).astype(np.float16)
        labels = random.integers(0, classes, rows)
        if options.pop("sort", False):
            labels.sort()
        ids = [f"c{label}/{row}.jpg" for row, label in enumerate(labels)]
        options.setdefault("chunk_rows", 96)  # 12,288 bytes: three pages
        store: Any = actstore.from_arrays(tmp_path / name, {"train": (values, labels, ids)}, **options)
        store.values, store.labels, store.ids = values, labels, ids
        return store

    return make


@pytest.fixture
def real_activations() -> Path:
    path = REAL_DATA / "miniimagenet-activations.npz"
    if not path.exists():
        pytest.skip(f"no real data at {REAL_DATA}; set ACTSTORE_DATA")
    return path


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server on loopback, for which the environment is set up."""
    with running_server() as server:
        yield server
