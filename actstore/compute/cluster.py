"""Work handed to the processes of a dask.distributed cluster, on this machine or on others.

`distributed` is an optional dependency and imported only here, when a cluster is asked for.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from actstore.errors import ActstoreError, ClusterError, reason_of

CONNECT_SECONDS = 10.0
WORKER_SECONDS = 60.0  # how long to wait for a worker where there is none: at the start, and when all were lost
_AHEAD = 3  # tasks per worker in flight: one runs, one waits for it, one may wait for its turn to be written
_RETRIES = 2  # of a task that fails for a reason of its worker, such as a sick GPU; lost workers are not counted here
_SAME = ("actstore", "torch", "numpy", "pillow")  # what rows are made with
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Cluster:
    """The workers behind a dask scheduler."""

    client: Any  # distributed.Client
    has_dashboard: bool = True

    @property
    def dashboard(self) -> str | None:
        """Its address in a browser."""
        return str(self.client.dashboard_link) if self.has_dashboard else None

    def workers(self) -> int:
        return len(self.client.nthreads())

    def map(self, name: str, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """function(task) of every task, in order. Tasks are called NAME-000012-… on the dashboard.

        Only a few tasks per worker are in flight, so that neither results nor tasks pile up. What a lost worker
        had is done again by another. An ActstoreError raised by the function is raised here.
        """
        token, numbered = uuid4().hex[:8], enumerate(tasks)
        ahead: deque[Any] = deque()
        try:
            while True:
                with _clear_errors(name):
                    for number, task in islice(numbered, max(0, _AHEAD * max(1, self.workers()) - len(ahead))):
                        key = f"{name}-{number:06d}-{token}"
                        ahead.append(self.client.submit(_run, function, task, key=key, retries=_RETRIES))
                    if not ahead:
                        return
                    result = self._wait(ahead[0])
                    ahead.popleft()
                if isinstance(result, _Refusal):
                    raise result.error
                yield result
        finally:
            self.client.cancel(list(ahead))

    def require_workers(self) -> None:
        """Wait for one if there is none."""
        try:
            self.client.wait_for_workers(1, timeout=WORKER_SECONDS)
        except TimeoutError:
            address = self.client.scheduler.address
            raise ClusterError(
                f"the dask scheduler at {address} has no workers, waited {WORKER_SECONDS:.0f} s; start some with "
                f"`dask worker {address} --nthreads 1` and repeat the same command"
            ) from None

    def _wait(self, future: Any) -> Any:
        patience = WORKER_SECONDS
        while True:
            try:
                return future.result(timeout=patience)
            except TimeoutError:
                if future.status == "error":
                    raise
                self.require_workers()  # a task may take long, but not where nobody works on it
                patience = min(2 * patience, 600)  # seconds; a large result also needs its time to arrive


@dataclass(frozen=True)
class _Refusal:
    """An error raised on purpose: it would be the same on every worker, so dask must not try again."""

    error: ActstoreError


def _run(function: Callable[[T], R], task: T) -> R | _Refusal:
    try:
        return function(task)
    except ActstoreError as error:
        return _Refusal(error)


@contextmanager
def connect(scheduler: str | None = None, local: int | None = None) -> Iterator[Cluster]:
    """The cluster at an address such as tcp://host:8786, or one of `local` processes that ends with the context.

    The address may also be the JSON file that `dask scheduler --scheduler-file FILE` writes.
    """
    if find_spec("distributed") is None:
        raise ClusterError("a cluster needs dask.distributed: pip install 'actstore[cluster]'")
    with _quiet():
        if scheduler is None:
            with _local_cluster(local or 1) as client:
                yield Cluster(client, find_spec("bokeh") is not None)
            return
        client = _client(parse_address(scheduler))
        try:
            cluster = Cluster(client)
            cluster.require_workers()
            _require_same_versions(client)
            yield cluster
        finally:
            client.close()


@contextmanager
def _local_cluster(workers: int) -> Iterator[Any]:
    import dask
    from distributed import Client, LocalCluster

    with (
        # A worker that is just being started again 15 s after it was lost would otherwise be given up for good.
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day"}),
        # No limit: memory is bounded by what is in flight, and mapped rows would only look like a worker that grows.
        LocalCluster(
            n_workers=workers, threads_per_worker=1, memory_limit=0, dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster, set_as_default=False, direct_to_workers=True) as client,
    ):  # fmt: skip
        client.wait_for_workers(workers, timeout=WORKER_SECONDS)
        yield client


def parse_address(text: str) -> str:
    """tcp://host:port, or what a scheduler's file says."""
    address = text
    if text.endswith(".json"):
        try:
            address = str(json.loads(Path(text).read_text())["address"])
        except (OSError, ValueError, KeyError) as error:
            raise ClusterError(f"{text} is no file of `dask scheduler --scheduler-file {text}`: {error}") from error
    if not re.fullmatch(r"((tcp|tls|ws|wss|ucx)://)?([\w.-]+|\[[\da-fA-F:]+\]):\d+", address):
        raise ClusterError(f"the address of a dask scheduler must be like tcp://10.0.0.1:8786, got {address!r}")
    return address


def _client(address: str) -> Any:
    from distributed import Client
    from distributed.versions import VersionMismatchWarning

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VersionMismatchWarning)  # we look for ourselves
            return Client(address, timeout=CONNECT_SECONDS, set_as_default=False, direct_to_workers=True)
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"no dask scheduler answers at {address}; start one with `dask scheduler` and give the address it prints, "
            "such as tcp://10.0.0.1:8786"
        ) from error
    except ImportError as error:
        raise ClusterError(f"the scheduler at {address} has other versions: {reason_of(error)}") from error


def _require_same_versions(client: Any) -> None:
    """Of what rows are made with on the workers, and of dask everywhere."""
    versions = client.get_versions(packages=_SAME)
    for where, names in (("scheduler", ()), *((worker, _SAME) for worker in versions["workers"])):
        theirs = versions["scheduler"] if where == "scheduler" else versions["workers"][where]
        for name in ("distributed", *names):
            ours, other = versions["client"]["packages"][name], theirs["packages"].get(name)
            if other != ours:
                raise ClusterError(
                    f"{where} has {name} {other or 'not at all'}, this client {ours}; "
                    "install the same versions on all machines, else the rows may differ"
                )


@contextmanager
def _clear_errors(name: str) -> Iterator[None]:
    """What dask raises -> one line that says what to do."""
    from distributed import CancelledError, KilledWorker

    again = "repeat the same command, it goes on where it stopped"
    try:
        yield
    except ActstoreError:
        raise
    except KilledWorker as error:
        raise ClusterError(
            f"{error.task} was lost with {error.allowed_failures + 1} workers one after the other, the last at "
            f"{error.last_worker.address}: look at their logs (out of memory?), then {again}"
        ) from error
    except (CancelledError, OSError) as error:
        raise ClusterError(f"{name}: the dask scheduler was lost ({reason_of(error)}); start it and {again}") from error
    except Exception as error:
        raise ClusterError(f"{name} failed on a worker: {type(error).__name__}: {reason_of(error)}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No log lines of dask on the terminal: workers may be lost and replaced, and every other failure is raised."""
    import_module("distributed")  # which sets levels of its own
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client", "tornado")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def worker_name() -> str:
    """Of the worker that runs the calling task."""
    from distributed import get_worker

    return str(get_worker().name)
