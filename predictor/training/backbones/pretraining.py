"""A backbone trained in one call: R_large^pt of the paper, on the base categories alone, or several joined into one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from actstore.backbones import require_trainable
from actstore.compute import parse_device, reuse_freed_memory
from actstore.errors import InvalidInputError
from actstore.images import open_images
from actstore.progress import TrainingBars, is_main_process
from predictor.protocol.category_split import CategorySplit, alphabetical_split
from predictor.training.backbones.config import choose_candidates
from predictor.training.backbones.ensemble import EnsembleResult, Tell, refuse_other_kind, train_ensemble
from predictor.training.backbones.images import select_images
from predictor.training.backbones.planning import plan_for_hours
from predictor.training.backbones.training import TrainingResult, train_backbone
from predictor.training.loop import RunOptions
from predictor.training.processes import failing_once, joined_processes

FEW_SHOT_HOURS = 2.0


def pretrain(
    images: str | Path,
    out: str | Path = "pretrained",
    *,
    split: CategorySplit | Callable[[Sequence[str]], CategorySplit] | None = None,
    preset: str = "quick",
    hours: float | None = None,
    ensemble: int = 1,
    device: str = "auto",
    workers: int | None = None,
    seed: int = 0,
    checkpoint_seconds: float = 15.0,
    restart: bool = False,
    progress: bool | None = None,
    **settings: Any,
) -> TrainingResult | EnsembleResult | None:
    """Train a network and its classifier on the base categories of images, and on no other.

    images: a folder, tar or list of all classes, or glyphs:CLASSESxTRAINxVAL. split: base and novel categories, or what
    chooses them among class names; the first 90% of the names are the base by default. preset: quick, few-shot,
    paper-resnet50, paper-simple or paper-wrn; settings: in place of its own, such as epochs=20. hours: measure this
    machine, then plan so long a training. ensemble: so many networks, joined into one. Interrupted, the same call goes
    on and ends with the same weights. `out` then holds best.safetensors, for `actstore.build(weights=…)`. None is
    returned in all but the first process of torchrun.
    """
    reuse_freed_memory()
    out, members = Path(out), ensemble
    if is_main_process():
        refuse_other_kind(out, members)
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
