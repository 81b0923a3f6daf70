"""Checkpoints of the loop that `ppa pretrain` once had for itself, made into those of the one loop.

They held the tensors model.* and momentum.*, and counted epochs and the steps of the epoch under way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from predictor.training.backbones.images import steps_per_epoch
from predictor.training.run_files import CHECKPOINT, locked, write_training


def convert_checkpoint(folder: Path) -> None:
    """Write it anew where it is a former one; a damaged file is left to who reads it."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    path = folder / CHECKPOINT
    if not path.exists():
        return
    with locked(folder):
        try:
            with safe_open(path, "pt") as file:
                text = (file.metadata() or {}).get("training")
            tensors = load_file(path)
        except SafetensorError:
            return
        if text is not None:
            names = {name: name.replace("model.", "network.", 1) for name in tensors if name.startswith("model.")}
            for name in tensors.keys() - names.keys():
                names[name] = name.replace("momentum.", "optimiser.momentum_buffer.", 1)
            written, scaler = convert_text(json.loads(text))
            write_training(path, {names[name]: tensor for name, tensor in tensors.items()} | scaler, written)


def convert_text(text: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the checkpoint says, and the tensors of the gradients' scale, which it said in words."""
    identity, before = text["identity"], text["state"]
    every = steps_per_epoch(identity["source"]["images"], identity["config"]["batch_size"])
    steps = every * identity["config"]["epochs"]
    share = before["step"] / max(1.0, before["images"])  # sums were over images, and are over steps
    state = {
        "step": before["epoch"] * every + before["step"],
        "seconds": before["seconds"],
        "line_began": before["seconds"] - before["epoch_seconds"],
        "sums": {"train_loss": before["loss_sum"] * share, "train_top1": before["correct"] * share},
        "history": before["history"],
    }
    if not before["step"]:
        state["sums"] = {}
    written = {"identity": {**identity, "run": {"steps": steps, "every": every}}, "state": state}
    if state["step"] == steps:
        written |= {"steps": steps, "seconds": before["seconds"], "figures": before["history"][-1]}
    keys = ("scale", "_growth_tracker")
    return written, {f"scaler.{key}": torch.tensor(before["scaler"][key]) for key in keys if key in before["scaler"]}
