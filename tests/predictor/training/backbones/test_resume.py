"""A training of a backbone that was killed and repeated ends bit for bit as one that was not."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from actstore.images.opening import open_images
from predictor.protocol.category_split import alphabetical_split
from predictor.training.backbones.images import select_images
from predictor.training.backbones.trainee import BackboneTrainee
from predictor.training.processes import Processes
from predictor.training.run_files import read_log, read_training
from tests.predictor.training.backbones.tiny import (
    TINY,
    TINY_GLYPHS,
    start,
    stop_after,
    train,
    training_script,
    weights_of,
)


def test_killed_at_random_steps_it_resumes_to_the_same_weights(tmp_path: Path, random: np.random.Generator) -> None:
    train(tmp_path / "whole", replace(TINY, epochs=3))
    script = training_script(tmp_path / "killed", replace(TINY, epochs=3))
    kills = sorted(random.choice(np.arange(1, 18), 2, replace=False))
    for done in kills:
        process = start([str(script)])
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= done:
                break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    state = json.loads((tmp_path / "killed" / "checkpoint.json").read_text())["state"]
    assert 0 < state["step"] < 18
    train(tmp_path / "killed", replace(TINY, epochs=3))
    for name in ("last.safetensors", "best.safetensors"):
        expected, found = weights_of(tmp_path / "whole", name), weights_of(tmp_path / "killed", name)
        assert expected.keys() == found.keys()
        for key, tensor in expected.items():
            assert torch.equal(tensor, found[key]), f"{name} {key}, killed after steps {kills}"
    for expected_row, row in zip(read_log(tmp_path / "whole"), read_log(tmp_path / "killed"), strict=True):
        for column in ("epoch", "step", "lr", "train_loss", "train_top1", "val_top1", "val_top5"):
            assert row[column] == expected_row[column]


def test_crops_cosines_and_sixteen_bits_resume_to_the_same_weights(tmp_path: Path) -> None:
    config = replace(TINY, augment="crop", min_scale=0.4, start_size=16, precision="bfloat16", flip=True, cosine=True)
    train(tmp_path / "whole", config)
    stop_after(tmp_path / "stopped", 4, config=config)
    stop_after(tmp_path / "stopped", 9, config=config)
    train(tmp_path / "stopped", config)
    for key, tensor in weights_of(tmp_path / "whole").items():
        assert tensor.dtype in (torch.float32, torch.int64)
        assert torch.equal(tensor, weights_of(tmp_path / "stopped")[key]), key


def former_checkpoint(folder: Path) -> None:
    """What is in the folder, as `ppa pretrain` wrote it when it had a loop of its own."""
    tensors, text = read_training(folder / "checkpoint.safetensors")
    state, every = text["state"], text["identity"].pop("run")["every"]
    epoch, step = divmod(state["step"], every)
    before = {
        "epoch": epoch, "step": step, "images": 12.0 * step, "history": state["history"], "seconds": state["seconds"],
        "loss_sum": 12 * state["sums"].get("train_loss", 0.0), "correct": 12 * state["sums"].get("train_top1", 0.0),
        "epoch_seconds": state["seconds"] - state["line_began"], "scaler": {},
    }  # fmt: skip
    names = {
        name: name.replace("network.", "model.").replace("optimiser.momentum_buffer.", "momentum.") for name in tensors
    }
    metadata = {"training": json.dumps({"identity": text["identity"], "state": before})}
    save_file({names[name]: tensor for name, tensor in tensors.items()}, folder / "checkpoint.safetensors", metadata)


def test_trainings_of_the_former_loop_are_resumed_and_read(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole")
    stop_after(tmp_path / "half", 8)
    former_checkpoint(tmp_path / "half")
    assert train(tmp_path / "half").steps == 12
    for key, tensor in weights_of(tmp_path / "whole").items():
        assert torch.equal(tensor, weights_of(tmp_path / "half")[key]), key
    for line, expected in zip(read_log(tmp_path / "half"), read_log(tmp_path / "whole"), strict=True):
        timed = ("images_per_second", "seconds")
        assert {key: line[key] for key in line if key not in timed} == pytest.approx(
            {key: expected[key] for key in line if key not in timed}
        )
    former_checkpoint(tmp_path / "whole")
    before = (tmp_path / "whole" / "last.safetensors").stat().st_mtime_ns
    assert train(tmp_path / "whole") == whole
    assert (tmp_path / "whole" / "last.safetensors").stat().st_mtime_ns == before


def test_the_scale_of_gradients_is_part_of_a_checkpoint() -> None:
    images = select_images(open_images(TINY_GLYPHS), alphabetical_split(open_images(TINY_GLYPHS)["train"].classes), 0)
    first, second = (BackboneTrainee(images, TINY, torch.device("cpu"), Processes(), {}) for _ in range(2))
    for trainee in (first, second):
        trainee._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    for number in range(5):
        first.step(number)
    assert first._scaler.get_scale() == 2.0**11
    second.restore(first.state())
    for trainee in (first, second):
        assert {key: float(value) for key, value in trainee.step(5).items()}
    assert second._scaler.state_dict() == first._scaler.state_dict()
    assert second._scaler.get_scale() == 2.0**12
    for name, tensor in first.state().items():
        assert torch.equal(tensor, second.state()[name]), name
