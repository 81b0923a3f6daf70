"""Copies to a device beside its computation: on a stream of their own, which the computation waits for only once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from actstore.compute.device import has_streams

Given = TypeVar("Given")
Sent = TypeVar("Sent")
Arrival = Callable[[], None]  # called before the tensors are used, by the thread that uses them


class SideStream:
    """Where a device has streams, one beside that of the computation; elsewhere all of this does nothing.

    What it reads of the device's memory must be made on it too.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, torch.get_device_module(device) if has_streams(device) else None
        self._stream: Any = None if self._module is None else self._module.Stream(device=device)

    def working(self) -> AbstractContextManager[Any]:
        """What this thread gives to the device goes to the side stream."""
        return nullcontext() if self._module is None else self._module.stream(self._stream)

    def arrival(self, *tensors: Tensor) -> Arrival:
        """Of tensors that were made on this stream: the computation then waits for them, and the host for nothing."""
        if self._module is None:
            return lambda: None
        module, device, ready = self._module, self._device, self._stream.record_event()

        def arrive() -> None:
            computing = module.current_stream(device)
            computing.wait_event(ready)
            for tensor in tensors:
                tensor.record_stream(computing)  # else its memory could be given away while it is still read

        return arrive


def sent_ahead(
    batches: Iterable[Given], send: Callable[[Given], Sent], tensors: Callable[[Sent], Iterable[Tensor]],
    device: torch.device,
) -> Iterator[Sent]:  # fmt: skip
    """Every batch on the device; where it has streams, the next one under way while one is in use. tensors: those of
    what was sent."""
    if not has_streams(device):
        yield from map(send, batches)
        return
    stream = SideStream(device)
    waiting: list[tuple[Sent, Arrival]] = []
    for batch in batches:
        with stream.working():
            sent = send(batch)
            waiting.append((sent, stream.arrival(*tensors(sent))))
        if len(waiting) > 1:
            first, arrive = waiting.pop(0)
            arrive()
            yield first
    for sent, arrive in waiting:
        arrive()
        yield sent
