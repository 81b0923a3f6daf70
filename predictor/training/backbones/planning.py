"""What a training can be in so many hours on this machine: speeds are measured, then network, sizes and epochs follow.

The plan is kept in OUT/plan.json, so that the same command goes on with it, however busy the machine is by then.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from actstore.backbones.construction import build_network
from actstore.compute.device import parse_device, synchronise
from actstore.errors import DamagedError
from actstore.storage.atomic_file import write_atomic
from predictor.training.backbones.config import TrainingConfig
from predictor.training.backbones.images import TrainingImages
from predictor.training.backbones.layers import in_precision
from predictor.training.processes import Processes, joined_processes
from predictor.training.run_files import refuse_other_training

PLAN = "plan.json"
SECONDS_PER_SPEED = 4.0  # of measuring one, after a step that warms up
OTHER_WORK = 0.08  # share of the time that goes into augmentation, evaluation, checkpoints and decoding
Candidates = Sequence[Sequence[TrainingConfig]]
Measure = Callable[[TrainingConfig, int], float]  # (settings, side of the images) -> images per second


def plan_training(
    candidates: Candidates, hours: float, images: int, measure: Measure
) -> tuple[TrainingConfig, dict[str, float]]:
    """The first candidate that gets at least its epochs over so many images, else the last; and the speeds measured.

    Candidates are lists of equals, of which the fastest is taken. Its epochs then are as many as the hours allow.
    """
    speeds: dict[str, float] = {}

    def speed_of(config: TrainingConfig, size: int) -> float:
        name = f"{config.backbone}, {size} pixels, {config.precision}"
        if name not in speeds:
            speeds[name] = measure(config, size)
        return speeds[name]

    for equals in candidates:
        config = max(equals, key=lambda equal: speed_of(equal, equal.image_size))
        seconds = images / speed_of(config, config.image_size)  # of an epoch
        if config.start_size:
            first_seconds = images / speed_of(config, config.start_size)
            seconds = config.start_share * first_seconds + (1 - config.start_share) * seconds
        epochs = int(hours * 3600 * (1 - OTHER_WORK) / seconds)
        if epochs >= config.epochs:
            break
    return replace(config, epochs=max(1, epochs)), speeds


def measure_speed(config: TrainingConfig, size: int, classes: int, device: torch.device, processes: Processes) -> float:
    """Images per second of training steps on ready pixels, of all processes together."""
    count = max(2, config.batch_size // processes.count)
    step = bare_step(config, size, classes, count, device)
    step()
    processes.wait()  # all compete for the machine while they are measured, as they will
    durations: list[float] = []
    while sum(durations) < SECONDS_PER_SPEED:
        began = time.perf_counter()
        step()
        durations.append(time.perf_counter() - began)
    speed = torch.tensor([count / statistics.median(durations)], dtype=torch.float64, device=processes.device)
    return float(processes.sum(speed))


def bare_step(config: TrainingConfig, size: int, classes: int, count: int, device: torch.device) -> Callable[[], None]:
    """Forward, backward and update of the network on `count` images that are ready, and nothing else."""
    network = build_network(config.backbone, classes, config.seed).to(device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(network.parameters(), 0.01, momentum=config.momentum)
    images = torch.zeros(count, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)
    targets = torch.zeros(count, dtype=torch.int64, device=device)
    model = in_precision(network, config, device)

    def step() -> None:
        optimiser.zero_grad()
        functional.cross_entropy(model(images), targets).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        synchronise(device)

    return step


def plan_for_hours(
    candidates: Candidates,
    hours: float,
    images: TrainingImages,
    out: Path,
    device: str = "auto",
    restart: bool = False,
) -> TrainingConfig:
    """The settings of a training of so many hours; those that were planned in `out` for the same wish, if any."""
    asked = {
        "hours": hours,
        "images": len(images.train),
        "candidates": [[config.to_json() for config in equals] for equals in candidates],
    }
    with joined_processes(parse_device(device)) as (processes, place):
        is_new = restart or not (out / PLAN).exists()
        kept = processes.from_first(b"" if is_new or not processes.is_first else (out / PLAN).read_bytes())
        if kept:
            return _read_plan(out / PLAN, kept, asked)
        measure = partial(measure_speed, classes=len(images.classes), device=place, processes=processes)
        config, speeds = plan_training(candidates, hours, len(images.train), measure)
        if processes.is_first:
            text = {"asked": asked, "config": config.to_json(), "images per second": speeds}
            out.mkdir(parents=True, exist_ok=True)
            write_atomic(out / PLAN, json.dumps(text, indent=1).encode())
        return config


def _read_plan(path: Path, content: bytes, asked: Mapping[str, Any]) -> TrainingConfig:
    try:
        plan = json.loads(content)
        before, config = plan["asked"], TrainingConfig(**plan["config"])
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"{path} is no plan of a training ({error}); discard it with --restart") from error
    refuse_other_training(path, {"plan": before}, {"plan": asked})
    return config
