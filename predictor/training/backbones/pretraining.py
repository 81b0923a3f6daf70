"""A backbone trained in one call: R_large^pt of the paper, on the base categories alone, or several joined into one.

Where it is to take so many hours, speeds are measured on this machine, then network, sizes and epochs follow. The plan
is kept in OUT/plan.json, so that the same command goes on with it, however busy the machine is by then.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from actstore.backbones import require_trainable
from actstore.backbones.construction import JOINED_BY, MOST, build_network, construct
from actstore.backbones.loading import load_backbone
from actstore.backbones.weights import Weights, fit_weights, read_weights, save_weights
from actstore.compute import reuse_freed_memory
from actstore.compute.device import has_streams, parse_device, synchronise
from actstore.errors import DamagedError, InvalidInputError
from actstore.images import open_images
from actstore.images.image_set import ImageSet, Loadable
from actstore.progress import TrainingBars, is_main_process
from actstore.storage.atomic_file import write_atomic
from predictor.protocol.category_split import CategorySplit, alphabetical_split
from predictor.training.backbones.batches import count_recognised, open_feed
from predictor.training.backbones.config import TrainingConfig, choose_candidates
from predictor.training.backbones.images import TrainingImages, evaluation_plan, select_images
from predictor.training.backbones.layers import in_precision
from predictor.training.backbones.trainee import BEST, LAST, TrainingResult, train_backbone
from predictor.training.loop import CHECKPOINT, CURVES, LOG, Report, RunOptions, discard, refuse_other_training
from predictor.training.processes import Processes, failing_once, joined_processes

PLAN = "plan.json"
SECONDS_PER_SPEED = 4.0  # of measuring one, after a step that warms up
OTHER_WORK = 0.08  # share of the time that goes into augmentation, evaluation, checkpoints and decoding
Candidates = Sequence[Sequence[TrainingConfig]]
Measure = Callable[[TrainingConfig, int], float]  # (settings, side of the images) -> images per second
Tell = tuple[Report | None, Callable[[int, int], None] | None]  # of steps, and of images decoded
FEW_SHOT_HOURS = 2.0
BACKBONE_FILES = (BEST, LAST, LOG, CURVES, CHECKPOINT, "checkpoint.json", PLAN)  # that may be in a folder


@dataclass(frozen=True)
class EnsembleResult:
    """Accuracies of the joined network, 0 to 1, on images that none of its members was trained on."""

    weights: str
    backbone: str
    classes: int
    val_images: int
    held_out: str
    val_top1: float
    val_top5: float
    members: list[TrainingResult]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        joined = (
            f"{self.weights}: {self.backbone}, with the activations of all; top-1 {self.val_top1:.2%}, "
            f"top-5 {self.val_top5:.2%} on {self.val_images:,} held-out images ({self.held_out})"
        )
        return "\n".join([*map(str, self.members), joined])


def pretrain(
    images: str | Path, out: str | Path = "pretrained", *,
    split: CategorySplit | Callable[[Sequence[str]], CategorySplit] | None = None, preset: str = "quick",
    hours: float | None = None, ensemble: int = 1, device: str = "auto", workers: int | None = None, seed: int = 0,
    checkpoint_seconds: float = 15.0, restart: bool = False, progress: bool | None = None, **settings: Any,
) -> TrainingResult | EnsembleResult | None:  # fmt: skip
    """Train a network and its own classifier on the base categories of images, and on no other category.

    An interrupted training goes on with the same call, and ends with the same weights. `out` then holds
    best.safetensors, for `actstore.build(weights=…)`.

    Args:
        images: a folder, tar or list of images, or glyphs:CLASSESxTRAINxVAL; see `actstore.build`.
        out: the folder of the training.
        split: base and novel categories, or a function that chooses them among class names; by default the first 90%
            of the names are the base.
        preset: "quick", "few-shot", "paper-resnet50", "paper-simple" or "paper-wrn".
        hours: measure this machine, then plan a training that takes so long.
        ensemble: train so many networks and join them into one.
        device: "cpu", "cuda", "cuda:1" or "auto".
        workers: processes that decode images.
        seed: of the first weights and of the order of images.
        checkpoint_seconds: how often the state is saved.
        restart: discard what is in the folder.
        progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.
        **settings: in place of the preset's, such as epochs=20.

    Returns:
        The result of the training; None in all but the first process of torchrun.

    Raises:
        InvalidInputError: images or categories are missing, or arguments exclude each other.
        DivergedError: a figure of the training is no longer a number.
    """
    reuse_freed_memory()
    out, members = Path(out), ensemble
    if is_main_process():  # both kinds of training write OUT/best.safetensors: one must not replace the other's
        if members > 1 and (out / CHECKPOINT).exists():
            raise InvalidInputError(f"{out} holds the training of one network; choose another --out for an ensemble")
        if members == 1 and (out / "1" / CHECKPOINT).exists():
            raise InvalidInputError(
                f"{out} holds an ensemble; choose another --out for one network, or give --ensemble"
            )
    if hours is not None and settings.get("epochs") is not None:
        raise InvalidInputError("--hours plans the epochs, so --epochs cannot be given with it; give one of them")
    if preset == "few-shot" and settings.get("epochs") is None:
        hours = hours or FEW_SHOT_HOURS
    candidates = choose_candidates(preset, seed=seed, **settings)
    require_trainable(candidates[0][0].backbone)  # before any image is listed
    sets = open_images(str(images))
    names = sorted({name for one in sets.values() for name in one.classes})
    categories = split(names) if callable(split) else split or alphabetical_split(names)
    categories.require_known(names, ["base"])  # images of novel classes need not be there yet
    workers = min(8, os.cpu_count() or 1) if workers is None else workers
    options = RunOptions(checkpoint_seconds, restart)
    # once for all networks: processes cannot join a second time
    with failing_once(), joined_processes(parse_device(device)), ExitStack() as bars_of_all:
        config = candidates[0][0]
        if hours is not None:
            config = plan_for_hours(
                candidates, hours / members, select_images(sets, categories, seed), out, device, restart
            )

        def tell(number: int) -> Tell:
            if not is_main_process():
                return None, None
            of_all = f" {number + 1} of {members}" if members > 1 else ""
            bars = bars_of_all.enter_context(TrainingBars(f"{config.backbone}{of_all}", progress))
            return bars.report, bars.decoded

        if members > 1:
            return train_ensemble(sets, categories, config, members, out, device, workers, options, tell)
        result = train_backbone(sets, categories, config, out, device, workers, options, *tell(0))
    return result if is_main_process() else None


def train_ensemble(
    sets: Mapping[str, ImageSet[Loadable]], split: CategorySplit, config: TrainingConfig, count: int, out: Path,
    device: str, workers: int, options: RunOptions, tell: Callable[[int], Tell],
) -> EnsembleResult | None:  # fmt: skip
    """Train the members in out/1, out/2, … with config.seed, config.seed + 1, …, one after another, and join them.

    Under torchrun every process calls this, and the first has the result. tell: who is told of member 0, 1, …
    """
    members = [out / str(number + 1) for number in range(count)]
    with joined_processes(parse_device(device)) as (processes, _):
        if processes.is_first and options.restart:
            for folder in (out / str(number + 1) for number in range(MOST)):
                discard(folder, (BEST, LAST))
            (out / BEST).unlink(missing_ok=True)
        processes.wait()
        going_on = replace(options, restart=False)  # a repeated restart would lose what was trained since
        results = []
        for number, folder in enumerate(members):
            own = replace(config, seed=config.seed + number)
            rest = (device, workers, going_on, *tell(number), config.seed)
            results.append(train_backbone(sets, split, own, folder, *rest))
            gc.collect()  # a training holds its images and workers in a circle of references
        if not processes.is_first:
            return None
    name = join_members([folder / BEST for folder in members], out / BEST)
    images = select_images(sets, split, config.seed)
    return measure_joined(name, out / BEST, images, config, results, device, workers)


def join_members(members: Sequence[Path], out: Path) -> str:
    """members: files of weights of one network, trained on the same classes. The logits of what is written to `out`
    are the mean of theirs; its name is returned."""
    files = [read_weights(path) for path in members]
    first = files[0]
    for other in files[1:]:
        if (other.backbone, other.classes, other.transform) != (first.backbone, first.classes, first.transform):
            raise InvalidInputError(
                f"{other.path} must be of the same network, classes and image size as {first.path}; train both alike"
            )
    name = JOINED_BY.join(str(file.backbone) for file in files)
    network = construct(name).module
    tensors = {
        f"networks.{place}.{part}": tensor
        for place, file in enumerate(files)
        for part, tensor in file.tensors.items()
        if not part.startswith("fc.")
    }
    tensors["fc.weight"] = torch.cat([file.tensors["fc.weight"] for file in files], 1) / len(files)
    tensors["fc.bias"] = torch.stack([file.tensors["fc.bias"] for file in files]).mean(0)
    fit_weights(network, Weights(out, tensors, name, first.classes, first.transform), name, "fc")
    save_weights(out, network, name, first.classes, first.transform)
    return name


def measure_joined(
    name: str, weights: Path, images: TrainingImages, config: TrainingConfig, members: list[TrainingResult],
    device: str, workers: int,
) -> EnsembleResult:  # fmt: skip
    backbone, place = load_backbone(name, weights), parse_device(device)
    network, transform = backbone.module.to(place), backbone.transform
    feed = open_feed(images.validation, transform, config.without_changes(), False, workers, has_streams(place))
    batches = feed.batches(evaluation_plan(len(images.validation), config.batch_size))
    top1, top5, seen = count_recognised(network, batches, transform, transform.crop, place).tolist()
    share1, share5 = top1 / max(1, seen), top5 / max(1, seen)
    return EnsembleResult(
        str(weights), name, len(images.classes), len(images.validation), images.held_out, share1, share5, members
    )


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
    """A learning step of the network on `count` images that are ready."""
    network = build_network(config.backbone, classes, config.seed).to(device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.zeros(count, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)
    return learning_step(in_precision(network, config, device), images)


def learning_step(module: nn.Module, inputs: Tensor, mixed: bool = False) -> Callable[[], None]:
    """Forward, backward and update on one batch, and nothing else. mixed: forward in half precision where that is
    safe."""
    targets = torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device)
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast(inputs.device.type, torch.float16, enabled=mixed):
            loss = functional.cross_entropy(module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        synchronise(inputs.device)

    return step


def plan_for_hours(
    candidates: Candidates, hours: float, images: TrainingImages, out: Path, device: str = "auto", restart: bool = False
) -> TrainingConfig:
    """The settings of a training of so many hours; those that were planned in `out` for the same wish, if any."""
    asked = {
        "hours": hours,
        "images": len(images.train),
        "candidates": [[config.to_json() for config in equals] for equals in candidates],
    }
    with joined_processes(parse_device(device)) as (processes, place):
        is_new = restart or not (out / PLAN).exists()
        kept = processes.from_first(None if is_new or not processes.is_first else (out / PLAN).read_bytes())
        if kept is not None:
            try:
                plan = json.loads(kept)
                before, config = plan["asked"], TrainingConfig(**plan["config"])
            except (ValueError, TypeError, KeyError) as error:
                raise DamagedError(
                    f"{out / PLAN} is no plan of a training ({error}); discard it with restart=True (--restart)"
                ) from error
            refuse_other_training(out / PLAN, {"plan": before}, {"plan": asked})
            return config
        measure = partial(measure_speed, classes=len(images.classes), device=place, processes=processes)
        config, speeds = plan_training(candidates, hours, len(images.train), measure)
        if processes.is_first:
            text = {"asked": asked, "config": config.to_json(), "images per second": speeds}
            out.mkdir(parents=True, exist_ok=True)
            write_atomic(out / PLAN, json.dumps(text, indent=1).encode())
        return config
