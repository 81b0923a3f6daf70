"""An accelerator in Python, so that every run of the tests tries what else only a machine with a GPU would.

A tensor on sim:0 or sim:1 holds a tensor of the CPU. Like a real card, the device refuses operands that lie elsewhere
and host memory that is asked for by address; unlike one, it also notices what a real card leaves to chance: a tensor
that one stream wrote and another reads without having waited, and memory that may be given away while it is read.
Results are the CPU's to the last bit, since the CPU computes them.

torch knows one such backend per process, and keeps it: `available` says whether the machine has the cards just now.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import lstm_impl
from torch.nn.functional import linear
from torch.utils import _pytree, backend_registration

COUNT = 2
MEMORY = 1 << 30  # bytes of each card
CAN_BE_SIMULATED = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")  # torch 2.9 or newer
_INDEXING = {"aten::index.Tensor", "aten::index_put_", "aten::_index_put_impl_"}  # take places from the host, like CUDA
_READS = {"aten::_local_scalar_dense"}


class Stream:
    """The order of work on a card: `tick` counts what was given to it; `seen`, how far it has waited for others."""

    def __init__(self, device: Any = None, **_: Any) -> None:
        self.place = 0 if device is None else torch.device(device).index or 0
        self.tick, self.seen = 0, dict[Stream, int]()

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def wait_event(self, event: Event) -> None:
        for stream, tick in event.reached.items():
            self.seen[stream] = max(tick, self.seen.get(stream, 0))

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.synchronised = self.tick


class Event:
    def __init__(self, **_: Any) -> None:
        self.reached: dict[Stream, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or module.current_stream()
        self.reached = {**stream.seen, stream: stream.tick}


class _Memory:
    """Of a storage: the stream it was allocated on, who may go on reading it, and what wrote it last."""

    def __init__(self, stream: Stream) -> None:
        self.owners, self.writer, self.tick = {stream}, stream, 0


class _Module:
    """What torch.cuda is to CUDA. half: whether the cards gain from 16 bits. counts: what was done, by name."""

    def __init__(self) -> None:
        self.available, self.half, self.memory = False, False, MEMORY
        self.counts: Counter[str] = Counter()
        self.memories: dict[int, _Memory] = {}
        self._here = threading.local()  # the current device and streams are a thread's own
        self._defaults = [Stream(torch.device("privateuseone", place)) for place in range(COUNT)]

    Stream, Event = Stream, Event

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return self.available

    def device_count(self) -> int:
        return COUNT if self.available else 0

    def current_device(self) -> int:
        return getattr(self._here, "device", 0)

    def set_device(self, device: Any) -> None:
        self._here.device = torch.device(device).index

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None: ...

    def get_device_name(self, device: Any) -> str:
        return f"simulated card {torch.device(device).index or 0}"

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        return self.memory, MEMORY

    def synchronize(self, device: Any = None) -> None:
        self.counts["synchronise"] += 1

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return self.half

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def current_stream(self, device: Any = None) -> Stream:
        place = self.current_device() if device is None else torch.device(device).index or 0
        stream: Stream = getattr(self._here, "streams", {}).get(place, self._defaults[place])
        return stream

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = getattr(self._here, "streams", {})
        self._here.streams = {**before, stream.place: stream}
        try:
            yield
        finally:
            self._here.streams = before


module = _Module()


class SimulatedTensor(Tensor):
    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> SimulatedTensor:
        made: SimulatedTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=device
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation is torch.ops.aten.copy_.default:
            return _copy(*args)
        if operation is torch.ops.aten._to_copy.default:
            return _to_copy(*args, **(kwargs or {}))
        return _compute(operation, args, kwargs or {})

    def tolist(self) -> Any:  # torch has it for its own classes of tensors alone
        module.counts["read"] += 1
        return self.detach().cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"{self.held!r} on {self.device}"

    def __deepcopy__(self, memo: dict[int, Any]) -> SimulatedTensor:
        """On the card: torch would copy the attribute `held`, memory that the card knows nothing of."""
        copied: SimulatedTensor = self.detach().clone().requires_grad_(self.requires_grad)  # type: ignore[assignment]
        copied._is_param = getattr(self, "_is_param", False)  # type: ignore[attr-defined]
        memo[id(self)] = copied
        return copied

    def record_stream(self, stream: Stream) -> None:
        _memory(self.held, stream).owners.add(stream)


def _memory(held: Tensor, stream: Stream) -> _Memory:
    return module.memories.setdefault(held.untyped_storage()._cdata, _Memory(stream))


def _on_card(name: str, value: Any, device: torch.device | None) -> Any:
    if isinstance(value, SimulatedTensor) or not isinstance(value, Tensor):
        return value
    if value.dim() and not (name in _INDEXING and value.dtype in (torch.int64, torch.bool)):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {device} and "
            f"{value.device}! (when checking arguments of {name})"
        )
    return value


def _compute(operation: Any, args: Any, kwargs: Any) -> Any:
    """Any operator: on the tensors that the card's hold, wrapped again; in place and out= return what was given."""
    name = operation.name()
    flat, layout = _pytree.tree_flatten((args, kwargs))
    given = [value for value in flat if isinstance(value, SimulatedTensor)]
    devices = {value.device for value in given} | {value for value in flat if isinstance(value, torch.device)}
    if len({value.device for value in given}) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {devices} in {name}")
    device = torch.device("sim", (min(devices, key=str).index if devices else None) or 0)
    stream = module.current_stream(device)
    for value in given:
        _require_order(name, value, stream)
    flat = [_on_card(name, value, device) for value in flat]
    plain = [value.held if isinstance(value, SimulatedTensor) else value for value in flat]
    plain = [torch.device("cpu") if isinstance(value, torch.device) else value for value in plain]
    args, kwargs = _pytree.tree_unflatten(plain, layout)
    module.counts["read" if name in _READS else "computed"] += 1
    result = operation(*args, **kwargs)
    stream.tick += 1
    known = {id(value.held): value for value in given}
    if operation._schema.is_mutable:
        for value in given:
            _written(value.held, stream)
    return _pytree.tree_map(lambda value: _wrap(value, known, device, stream), result)


def _wrap(value: Any, known: dict[int, SimulatedTensor], device: torch.device, stream: Stream) -> Any:
    if not isinstance(value, Tensor):
        return value
    if id(value) in known:
        return known[id(value)]
    storage = value.untyped_storage()._cdata
    base = next((one for one in known.values() if one.held.untyped_storage()._cdata == storage), None)
    if base is None:
        module.memories[storage] = _Memory(stream)
        _written(value, stream)
        return SimulatedTensor(value, device)
    with torch.inference_mode(base.is_inference()):  # a view of a tensor is of its kind
        return SimulatedTensor(value, device)


def _written(held: Tensor, stream: Stream) -> None:
    memory = _memory(held, stream)
    memory.writer, memory.tick = stream, stream.tick


def _require_order(name: str, value: SimulatedTensor, stream: Stream) -> None:
    memory = _memory(value.held, stream)
    if memory.writer is not stream and stream.seen.get(memory.writer, 0) < memory.tick:
        raise RuntimeError(f"{name} reads what another stream wrote, without having waited for it")
    if stream not in memory.owners:
        raise RuntimeError(f"{name} reads memory of another stream, which may give it away: record_stream is missing")


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Between host and card, or cards: the only operator that takes both."""
    for side in (source, target):
        if isinstance(side, SimulatedTensor):
            stream = module.current_stream(side.device)
            _require_order("aten::copy_", side, stream)
            if side is target:
                stream.tick += 1
                _written(side.held, stream)
    to_card, from_card = isinstance(target, SimulatedTensor), isinstance(source, SimulatedTensor)
    module.counts["on card" if to_card and from_card else "to card" if to_card else "from card"] += 1
    if not from_card:
        module.counts[f"bytes to card, {source.dtype}"] += source.numel() * source.element_size()
    into, of = (side.held if isinstance(side, SimulatedTensor) else side for side in (target, source))
    into.copy_(of)
    return target


def _to_copy(source: Tensor, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    """From a card: to another type, another card or the host."""
    device = source.device if device is None else torch.device(device)
    like = torch.empty_like(source.held, dtype=dtype, memory_format=memory_format or torch.preserve_format)
    return _copy(like if device.type == "cpu" else _fresh(like, device), source)


def _empty(size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
           memory_format: Any = None) -> Tensor:  # fmt: skip
    return _fresh(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format), device)


def _empty_strided(size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None,
                   pin_memory: Any = None) -> Tensor:  # fmt: skip
    return _fresh(torch.empty_strided(size, stride, dtype=dtype), device)


def _fresh(held: Tensor, device: Any) -> Tensor:
    place = torch.device("sim", module.current_device() if device is None or device.index is None else device.index)
    module.memories[held.untyped_storage()._cdata] = _Memory(module.current_stream(place))
    return SimulatedTensor(held, place)


def _lstm_cell(inputs: Tensor, before: list[Tensor], of_inputs: Tensor, of_hidden: Tensor, input_bias: Any = None,
               hidden_bias: Any = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """In the CPU's steps: for a card torch would ask for a fused kernel, which the CPU has not."""
    hidden, cell = before
    gates = linear(hidden, of_hidden, hidden_bias).add_(linear(inputs, of_inputs, input_bias))
    entry, forget, candidate, output = gates.chunk(4, 1)
    cell = forget.sigmoid() * cell + entry.sigmoid() * candidate.tanh()
    return output.sigmoid() * cell.tanh(), cell


def _install_autocast() -> None:
    """Products in the 16 bits that autocast asks for, all else as it comes."""
    others = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    others.fallback(torch.library.fallthrough_kernel)
    products = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    for name in ("mm", "addmm", "bmm", "matmul", "linear", "conv2d"):
        products.impl(name, partial(_in_16_bits, getattr(torch.ops.aten, name)))
    _LIBRARIES.extend([others, products])


def _in_16_bits(operation: Any, *given: Any, **options: Any) -> Any:
    dtype, autocast = torch.get_autocast_dtype("sim"), torch._C.DispatchKey.AutocastPrivateUse1
    module.counts[f"products in {dtype}"] += 1
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(autocast)):
        return operation(*_pytree.tree_map_only(_is_float32, lambda tensor: tensor.to(dtype), given), **options)


def _is_float32(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float32


_LIBRARIES: list[torch.library.Library] = []  # registered as long as they are held


def install() -> _Module:
    """Once per process."""
    if not _LIBRARIES:
        backend_registration._setup_privateuseone_for_python_backend("sim", backend_module=module, hook=_Hook())
        aten = torch.library.Library("aten", "IMPL", "PrivateUse1")
        aten.impl("empty.memory_format", _empty)
        aten.impl("empty_strided", _empty_strided)
        aten.impl("_copy_from", lambda source, target, non_blocking=False: _copy(target, source))
        _LIBRARIES.append(aten)
        _install_autocast()
        for key in ("AutogradPrivateUse1", "PrivateUse1"):
            cells = torch.library.Library("aten", "IMPL", key)
            cells.impl("lstm_cell", _lstm_cell)
            cells.impl("lstm.input", lstm_impl)
            _LIBRARIES.append(cells)
    return module


@contextmanager
def available(patch: Any) -> Iterator[_Module]:
    """The machine has the cards, with nothing counted. Pinned memory, which a backend in Python cannot give, is plain
    memory that is counted."""
    found = install()
    empty, counts = torch.empty, found.counts
    found.available, found.half, found.memory = True, False, MEMORY
    counts.clear()

    def pin(tensor: Tensor, device: Any = None) -> Tensor:
        counts["pinned"] += 1
        return tensor.clone()

    def empty_or_pinned(*args: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        counts["pinned"] += pin_memory
        return empty(*args, **options)

    patch.setattr(torch.Tensor, "pin_memory", pin)
    patch.setattr(torch, "empty", empty_or_pinned)
    try:
        yield found
    finally:
        found.available = False


class _Hook(torch._C._acc.PrivateUse1Hooks):  # type: ignore[misc]
    def is_available(self) -> bool:
        return module.available

    def has_primary_context(self, place: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True
