"""Work spread over threads that each use one core: torch's own threads wait for each other, busily, between calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from actstore.compute.tensors import one_thread


@contextmanager
def worker_threads() -> Iterator[int]:
    """How many workers there may be, as many as torch has threads; meanwhile torch itself uses only the caller's.

    On two busy cores a search took three times the processor time without this.
    """
    workers = torch.get_num_threads()
    with one_thread():
        yield workers


def spread(work: Callable[[int, int], None], parts: int, workers: int) -> None:
    """work(part, worker) for every part, by at most so many workers; the caller is worker 0.

    Parts are handed out in order as workers get free. The first error is raised here, after all have stopped.
    """
    numbers = iter(range(parts))  # its next() is atomic
    errors: list[BaseException] = []

    def run(worker: int) -> None:
        try:
            if worker:
                torch.set_num_threads(1)
            for part in numbers:
                if errors:
                    return
                work(part, worker)
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            errors.append(error)

    others = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in range(1, min(workers, parts))]
    for thread in others:
        thread.start()
    run(0)
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]
