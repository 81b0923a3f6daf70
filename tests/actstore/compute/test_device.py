"""Devices by name, and what they can do, as code asks for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from actstore.compute import device as devices
from actstore.compute.device import SideStream, parse_device, sent_ahead
from actstore.errors import InvalidInputError

CPU = torch.device("cpu")


def test_names(card: Any) -> None:
    assert parse_device("auto") == torch.device("sim")
    assert parse_device("cpu") == CPU
    assert parse_device("sim:1").index == 1
    card.available = False
    assert parse_device("auto") == CPU


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sim:2", "device sim:2 was asked for, but torch finds only sim:0, sim:1"),
        ("cpu:3", "device cpu:3 was asked for, but torch finds only cpu"),
        ("cuda", "device cuda was asked for, but torch finds no CUDA device; use --device cpu"),
        ("xpu", "device xpu was asked for, but torch finds no XPU device; use --device cpu"),
        ("meta", "device meta was asked for, but torch finds no META device"),
        ("tpu", "device must be auto, cpu, cuda, cuda:1, mps or xpu, got 'tpu'"),
        ("cuda:x", "got 'cuda:x'"),
        ("", "got ''"),
    ],
)
def test_a_device_that_is_not_there_is_one_line(card: Any, name: str, message: str) -> None:
    if name in ("cuda", "xpu") and torch.get_device_module(name).is_available():
        pytest.skip("there is one")
    with pytest.raises(InvalidInputError) as raised:
        parse_device(name)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_abilities(card: Any) -> None:
    sim = torch.device("sim:1")
    assert (devices.is_accelerator(sim), devices.has_streams(sim)) == (True, True)
    assert (devices.has_half(sim), devices.has_bfloat16(sim)) == (False, False)
    card.half = True
    assert (devices.has_half(sim), devices.has_bfloat16(sim)) == (True, True)
    assert devices.free_memory(sim) == 1 << 30
    assert devices.name_device(sim) == "simulated card 1"
    assert devices.steps_per_reading(sim) > 1
    devices.synchronise(sim)
    assert card.counts["synchronise"] == 1


def test_of_a_cpu_nothing_is_asked() -> None:
    assert not any(ask(CPU) for ask in (devices.is_accelerator, devices.has_streams, devices.has_half))
    assert (devices.free_memory(CPU), devices.name_device(CPU), devices.steps_per_reading(CPU)) == (None, None, 1)
    devices.synchronise(CPU)


def test_of_an_apple_gpu_neither_streams_nor_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its torch module has few of the functions that CUDA's has."""
    mps, waited = torch.device("mps"), list[tuple[Any, ...]]()
    monkeypatch.setattr(torch.mps, "synchronize", lambda *arguments: waited.append(arguments))
    devices.synchronise(mps)
    assert waited == [()]
    assert (devices.has_streams(mps), devices.has_half(mps), devices.has_bfloat16(mps)) == (False, False, False)
    assert (devices.free_memory(mps), devices.name_device(mps)) == (None, None)
    assert devices.most_precise(mps) == torch.float32
    assert devices.most_precise(CPU) == torch.float64
    assert not devices.empty_on_host((2,), torch.float16, mps).is_pinned()
    with pytest.raises(InvalidInputError, match="mps"):
        devices.card_of_process(mps, 0)


def test_every_process_has_a_card_of_its_own(card: Any) -> None:
    assert devices.card_of_process(CPU, 7) == CPU
    assert devices.card_of_process(torch.device("sim"), 1) == torch.device("sim:1")
    assert card.current_device() == 1
    card.set_device("sim:0")
    with pytest.raises(InvalidInputError, match="3 processes on a machine with 2 of sim"):
        devices.card_of_process(torch.device("sim"), 2)


@pytest.mark.parametrize("device", ["cpu", "sim:1"])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_batches_are_sent_one_ahead(card: Any, device: str, count: int) -> None:
    place, sent = torch.device(device), list[int]()

    def send(number: int) -> torch.Tensor:
        sent.append(number)
        return torch.full((3,), number).to(place)

    for number, tensor in enumerate(sent_ahead(range(count), send, lambda tensor: [tensor], place)):
        assert (tensor + 1).tolist() == [number + 1] * 3
        assert sent == list(range(min(count, number + 1 + (device != "cpu"))))
    assert len(sent) == count


def test_streams_are_kept_apart(card: Any) -> None:
    """That the simulated card notices what a real one leaves to chance."""
    place = torch.device("sim")
    stream, held = SideStream(place), torch.ones(3, device=place)
    with stream.working(), pytest.raises(RuntimeError, match="without having waited"):
        held + 1
    with stream.working():
        made = torch.ones(3, device=place)
    card.current_stream(place).wait_event(stream._stream.record_event())
    with pytest.raises(RuntimeError, match="record_stream is missing"):
        made + 1
    stream.arrival(made)()
    assert (made + 1).tolist() == [2, 2, 2]
