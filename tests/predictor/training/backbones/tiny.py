"""A training of a backbone that takes a second, in this process or in others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from actstore.backbones.weights import read_weights
from actstore.images.opening import open_images
from predictor.protocol.category_split import CategorySplit, alphabetical_split
from predictor.training import Figures, RunOptions
from predictor.training.backbones.config import TrainingConfig, choose_preset
from predictor.training.backbones.trainee import TrainingResult, train_backbone

ROOT = Path(__file__).parents[4]
TINY = choose_preset("quick", epochs=2, batch_size=12, learning_rate=0.05, warmup_epochs=0.5)
TINY_GLYPHS = "glyphs:10x8x3"  # 9 base classes: 72 images to train on, 27 held out; 6 steps per epoch
EVERY_STEP = RunOptions(checkpoint_seconds=0)


def train(
    out: Path, config: TrainingConfig = TINY, images: str = TINY_GLYPHS, split: CategorySplit | None = None, **more: Any
) -> TrainingResult:
    sets = open_images(images)
    return train_backbone(sets, split or alphabetical_split(sets["train"].classes), config, out, "cpu", **more)


def training_script(out: Path, config: TrainingConfig, first: str = "") -> Path:
    """A program that trains, saves itself after every step, and prints a line for each."""
    script = out.parent / f"{out.name}-train.py"
    script.write_text(
        f"{first}import json\n"
        "from pathlib import Path\n"
        "from predictor.training.backbones.config import TrainingConfig\n"
        "from predictor.training import RunOptions\n"
        "from predictor.training.backbones.trainee import train_backbone\n"
        "from predictor.protocol.category_split import alphabetical_split\n"
        "from actstore.images.opening import open_images\n"
        f"sets, config = open_images({TINY_GLYPHS!r}), TrainingConfig(**json.loads({json.dumps(config.to_json())!r}))\n"
        "split = alphabetical_split(sets['train'].classes)\n"
        "report = lambda done, total, figures: print(done, flush=True)\n"
        f"train_backbone(sets, split, config, Path({str(out)!r}), 'cpu', 0, RunOptions(checkpoint_seconds=0), report)\n"
    )
    return script


def start(arguments: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


def weights_of(out: Path, name: str = "last.safetensors") -> dict[str, torch.Tensor]:
    return read_weights(out / name).tensors


def stop_after(out: Path, steps: int, **more: Any) -> None:
    """An interrupted training with a checkpoint."""

    def report(done: int, total: int, figures: Figures) -> None:
        if done > steps:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(out, options=EVERY_STEP, report=report, **more)
