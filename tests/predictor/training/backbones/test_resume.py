"""A training of a backbone that was killed and repeated ends bit for bit as one that was not."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from actstore.images.opening import open_images
from predictor.protocol.category_split import alphabetical_split
from predictor.training.backbones.images import select_images
from predictor.training.backbones.trainee import BackboneTrainee
from predictor.training.loop import read_log
from predictor.training.processes import Processes
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
