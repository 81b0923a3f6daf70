"""Several processes that train one model, as torchrun starts them: who they are, what they share, how they fail."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import torch
import torch.distributed
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from actstore.compute.device import card_of_process
from actstore.errors import PeerFailedError
from actstore.streams.sampling import share

_SECONDS_TO_SPEAK = 1.0
T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process among `count`, as torchrun started them. device: where what they exchange must lie."""

    rank: int = 0
    count: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Over all processes, in place; the same bits for all of them."""
        if self.count > 1:
            with _peers():
                torch.distributed.all_reduce(values)
        return values

    def any(self, *flags: bool) -> list[bool]:
        """Of each flag, whether it is set in some process."""
        if self.count == 1:
            return list(flags)
        return [count > 0 for count in self.sum(torch.tensor(flags, dtype=torch.float32, device=self.device)).tolist()]

    def wait(self) -> None:
        """For all of them to come here."""
        self.any(True)

    def gather(self, part: Tensor, rows: int) -> Tensor:
        """Everyone's part in order -> (rows, …), differentiable. A part is (its `share` of the rows, …)."""
        if self.count == 1:
            return part
        whole: Tensor = _Gather.apply(part, rows, self)  # type: ignore[no-untyped-call]
        return whole

    def from_first(self, content: T) -> T:
        """What the first process passes, for all of them; what the others pass is ignored."""
        box = [content]
        if self.count > 1:
            with _peers():
                torch.distributed.broadcast_object_list(box, 0, device=self.device)
        return box[0]


class _Gather(torch.autograd.Function):
    """All parts to everyone; each part's gradient is the sum of what everyone found.

    A broadcast per part: parts may differ in length, and gloo took 69 ms for 21,000 x 2048 on two processes of one
    machine where its all-gather took 234; summing took 126 ms by all-reduce, 258 by reduce-scatter.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, rows: int, processes: Processes) -> Tensor:
        ctx.processes = processes
        whole = part.new_empty((rows, *part.shape[1:]))
        shares = [whole[share(rows, rank, processes.count)] for rank in range(processes.count)]
        shares[processes.rank].copy_(part)
        with _peers():
            for sent in [torch.distributed.broadcast(one, rank, async_op=True) for rank, one in enumerate(shares)]:
                sent.wait()
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        processes: Processes = ctx.processes
        total = processes.sum(gradient.clone(memory_format=torch.contiguous_format))
        return total[share(len(total), processes.rank, processes.count)], None, None


@contextmanager
def joined_processes(device: torch.device) -> Iterator[tuple[Processes, torch.device]]:
    """Join those that torchrun started, if it did, by what torch has for the device (gloo, nccl, xccl), a card each.

    Within another call they are joined already. torch cannot join the same processes a second time.
    """
    count = started_processes()
    if count == 1:
        yield Processes(device=device), device
        return
    device = card_of_process(device, int(os.environ["LOCAL_RANK"]))
    is_joined = torch.distributed.is_initialized()
    if not is_joined:
        import_module("torch.distributed.nn")  # later, its functions would keep the group for good, as a default
        torch.distributed.init_process_group(torch.distributed.get_default_backend_for_device(device))
    try:
        yield Processes(torch.distributed.get_rank(), count, device), device
    finally:
        if not is_joined:
            # It ends gloo's threads with the group, unless somebody still holds it, as networks that were wrapped do,
            # which are held by themselves. A thread that is left when the interpreter ends aborts the process.
            gc.collect()
            torch.distributed.destroy_process_group()


def started_processes() -> int:
    """How many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def failing_once() -> Iterator[None]:
    """Of several processes only the first that fails raises its error; the others end without a word, with code 1.

    Mostly all fail alike, or because one did, which then has a moment to say why: torchrun ends all processes as soon
    as one has ended.
    """
    if started_processes() == 1:
        yield
        return
    store = next(rendezvous("env://"))[0]
    try:
        yield
    except BaseException as error:
        if not isinstance(error, PeerFailedError) and _is_first_failure(store):
            raise
        time.sleep(_SECONDS_TO_SPEAK)
        if _is_first_failure(store):  # the one that failed was killed, and says nothing
            raise
        raise SystemExit(1) from None


def _is_first_failure(store: Any) -> bool:
    try:
        return bool(store.add("actstore failures", 1) == 1)
    except RuntimeError:  # who held the count is gone
        return True


@contextmanager
def _peers() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PeerFailedError(
            "another process of this training ended or cannot be reached, see what it said; repeat the same command "
            "to go on from the last checkpoint"
        ) from error
