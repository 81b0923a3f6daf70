"""Which device to compute on, and what it can do: code asks for abilities, never for the name of a device.

A device that was asked for and is absent is an error, never silently another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from actstore.errors import InvalidInputError

ASKED_FOR = "auto, cpu, cuda, cuda:1, mps or xpu"
STEPS_PER_READING = 20  # of a training on an accelerator: reading a figure waits for all that it was given so far


def parse_device(name: str) -> torch.device:
    """auto: the accelerator where there is one, else the CPU. cuda:1: the second of several cards."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return torch.device("cpu") if accelerator is None else torch.device(accelerator.type)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidInputError(f"device must be {ASKED_FOR}, got {name!r}") from None
    count = count_devices(device.type)
    if not count:
        raise InvalidInputError(
            f"device {name} was asked for, but torch finds no {device.type.upper()} device; use --device cpu"
        )
    if (device.index or 0) >= count:
        there = ", ".join(f"{device.type}:{place}" for place in range(count)) if device.type != "cpu" else "cpu"
        raise InvalidInputError(f"device {name} was asked for, but torch finds only {there}; use one of these")
    return device


def count_devices(kind: str) -> int:
    """How many of a kind this machine has: 1 of cpu, 0 of a kind that torch cannot use here."""
    module = _module(kind)
    if kind == "cpu" or module is None or not module.is_available():
        return int(kind == "cpu")
    return int(module.device_count())


def is_accelerator(device: torch.device) -> bool:
    """Whether it has memory of its own and works while the host goes on."""
    return device.type != "cpu"


def has_streams(device: torch.device) -> bool:
    """Whether it copies from pinned host memory while it computes. mps does not: its memory is the host's."""
    return is_accelerator(device) and hasattr(_module(device.type), "Stream")


def has_half(device: torch.device) -> bool:
    """Whether it gains from products in 16 bits."""
    supported = getattr(_module(device.type), "is_bf16_supported", None)
    return is_accelerator(device) and supported is not None and bool(supported())


def has_bfloat16(device: torch.device) -> bool:
    """Whether these 16 bits may be bfloat16's: older cards only imitate them, slowly."""
    return has_half(device) and bool(_module(device.type).is_bf16_supported(including_emulation=False))


def most_precise(device: torch.device) -> torch.dtype:
    """float64, but where a device has none."""
    return torch.float32 if device.type == "mps" else torch.float64


def free_memory(device: torch.device) -> int | None:
    """Bytes of a card that nobody uses; None where memory is the host's."""
    asked = getattr(_module(device.type), "mem_get_info", None)
    return int(asked(device)[0]) if is_accelerator(device) and asked is not None else None


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if is_accelerator(device):
        _module(device.type).synchronize(*([device] if has_streams(device) else []))


def name_device(device: torch.device) -> str | None:
    """As its maker calls it, such as "NVIDIA A100"; None for the CPU."""
    named = getattr(_module(device.type), "get_device_name", None)
    return str(named(device)) if is_accelerator(device) and named is not None else None


def card_of_process(device: torch.device, place: int) -> torch.device:
    """For process number `place` on this machine: the CPU, which all share, or a card of its own, made the current."""
    if not is_accelerator(device):
        return device
    if not hasattr(_module(device.type), "set_device"):
        raise InvalidInputError(f"several processes need a card each, or --device cpu, got {device.type}")
    if place >= (count := count_devices(device.type)):
        raise InvalidInputError(f"{place + 1} processes on a machine with {count} of {device.type}; start {count}")
    card = torch.device(device.type, place)
    _module(device.type).set_device(card)
    return card


def steps_per_reading(device: torch.device) -> int:
    """After how many steps of a training its figures are read: 1 where that costs nothing."""
    return STEPS_PER_READING if is_accelerator(device) else 1


def empty_on_host(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Host memory that is filled and then sent to the device, pinned where that helps."""
    return torch.empty(shape, dtype=dtype, pin_memory=has_streams(device))


def _module(kind: str) -> Any:
    """torch.cuda, torch.xpu, torch.mps, …; None for a kind without."""
    return getattr(torch, kind, None)


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
