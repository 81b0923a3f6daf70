"""Training of a backbone: pure plans, exact resume after a kill, and several processes that equal one."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from actstore.backbones.construction import build_network
from actstore.backbones.distributed import SynchronisedBatchNorm2d, synchronise_batch_norm
from actstore.backbones.loading import load_backbone
from actstore.backbones.presets import TrainingConfig, choose_preset
from actstore.backbones.training import Progress, RunOptions, TrainingResult, train_backbone
from actstore.backbones.training_data import (
    select_images,
)  # fmt: skip
from actstore.backbones.training_run import DivergedError
from actstore.backbones.weights import read_weights
from actstore.category_split import CategorySplit, alphabetical_split
from actstore.errors import DamagedError, InvalidInputError, LockedError
from actstore.sources.spoken import open_images

ROOT = Path(__file__).parents[2]
TINY = choose_preset("quick", epochs=2, batch_size=12, learning_rate=0.05, warmup_epochs=0.5)
TINY_GLYPHS = "glyphs:10x8x3"  # 9 base classes: 72 images to train on, 27 held out; 6 steps per epoch
CPU = RunOptions(device="cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Steps this small gain nothing from more, and lose much where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def train(
    out: Path, config: TrainingConfig = TINY, options: RunOptions = CPU, images: str = TINY_GLYPHS
) -> TrainingResult:
    sets = open_images(images)
    return train_backbone(sets, alphabetical_split(sets["train"].classes), config, out, options)


# Training is chaotic: what processors round differently in float32 grows a hundred thousand times in ten steps.
IN_FLOAT64 = """
from actstore.backbones import training_run, training_step
build, feed = training_run.build_network, training_step.to_network
def feed_precisely(*given):
    images, targets = feed(*given)
    return images.double(), targets
training_run.build_network = lambda *given: build(*given).double()
training_step.to_network = feed_precisely
"""


def training_script(out: Path, config: TrainingConfig, first: str = "") -> Path:
    """A program that trains, saves itself after every step, and prints a line for each."""
    script = out.parent / f"{out.name}-train.py"
    script.write_text(
        f"{first}import json\n"
        "from pathlib import Path\n"
        "from actstore.backbones.presets import TrainingConfig\n"
        "from actstore.backbones.training import RunOptions, train_backbone\n"
        "from actstore.category_split import alphabetical_split\n"
        "from actstore.sources.spoken import open_images\n"
        f"sets, config = open_images({TINY_GLYPHS!r}), TrainingConfig(**json.loads({json.dumps(config.to_json())!r}))\n"
        "split = alphabetical_split(sets['train'].classes)\n"
        "report = lambda now: print(now.stage, now.done, flush=True)\n"
        f"train_backbone(sets, split, config, Path({str(out)!r}), RunOptions('cpu', checkpoint_seconds=0), report)\n"
    )
    return script


def start(arguments: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


def log_of(out: Path) -> list[dict[str, float]]:
    with (out / "log.csv").open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def weights_of(out: Path, name: str = "last.safetensors") -> dict[str, torch.Tensor]:
    return read_weights(out / name).tensors


def test_a_training_leaves_weights_that_the_backbone_loads(tmp_path: Path) -> None:
    told: list[Progress] = []
    sets = open_images(TINY_GLYPHS)
    split = alphabetical_split(sets["train"].classes)
    result = train_backbone(sets, split, TINY, tmp_path, CPU, told.append)
    assert (result.classes, result.train_images, result.val_images, result.steps) == (9, 72, 27, 12)
    rows = log_of(tmp_path)
    assert [row["epoch"] for row in rows] == [1, 2]
    assert rows[1]["train_loss"] < rows[0]["train_loss"]
    assert rows[-1]["images_per_second"] > 0
    assert result.best_val_top1 == pytest.approx(max(row["val_top1"] for row in rows), abs=1e-6)
    assert told[-1].done == told[-1].total == 144
    backbone = load_backbone("small", tmp_path / "best.safetensors")
    assert backbone.trained_classes == split.base
    assert backbone.transform == build_network("small", 2).transform
    assert weights_of(tmp_path)["fc.weight"].shape == (9, 256)
    with Image.open(tmp_path / "curves.png") as image:
        assert image.width > 800
    assert json.loads((tmp_path / "checkpoint.json").read_text())["state"]["epoch"] == 2


def test_held_out_accuracy_is_that_of_the_best_weights(tmp_path: Path) -> None:
    result = train(tmp_path, replace(TINY, epochs=4, learning_rate=0.1))
    backbone = load_backbone("small", tmp_path / "best.safetensors")
    held_out = select_images(open_images(TINY_GLYPHS), CategorySplit(backbone.trained_classes or ()), 0).validation
    images = torch.stack([backbone.transform(item.load()) for item in held_out.items])
    with torch.inference_mode():
        found = backbone.module(images).argmax(1).numpy()
    # one image may lie on a rounding: batches of other sizes round differently
    assert (found == held_out.targets).mean() == pytest.approx(result.best_val_top1, abs=1.1 / len(found))
    assert result.best_val_top1 > 0.3  # chance is 0.11


def test_a_finished_training_is_not_repeated(tmp_path: Path) -> None:
    first = train(tmp_path)
    before = (tmp_path / "last.safetensors").stat().st_mtime_ns
    again = train(tmp_path)
    assert (tmp_path / "last.safetensors").stat().st_mtime_ns == before
    assert again == first


@pytest.mark.numeric
def test_global_random_state_neither_matters_nor_changes(tmp_path: Path) -> None:
    torch.default_generator.manual_seed(5)
    before = torch.get_rng_state()
    short = replace(TINY, epochs=1)
    train(tmp_path / "a", short)
    assert torch.equal(torch.get_rng_state(), before)
    torch.default_generator.manual_seed(6)
    train(tmp_path / "b", short)
    for name, tensor in weights_of(tmp_path / "a").items():
        assert torch.equal(tensor, weights_of(tmp_path / "b")[name]), name
    train(tmp_path / "c", replace(short, seed=1))
    assert not torch.equal(weights_of(tmp_path / "a")["fc.weight"], weights_of(tmp_path / "c")["fc.weight"])


def test_killed_at_random_steps_it_resumes_to_the_same_weights(tmp_path: Path, random: np.random.Generator) -> None:
    train(tmp_path / "whole", replace(TINY, epochs=3))
    script = training_script(tmp_path / "killed", replace(TINY, epochs=3))
    kills = sorted(random.choice(np.arange(1, 18), 2, replace=False) * 12)
    for done in kills:
        process = start([str(script)])
        assert process.stdout is not None
        for line in process.stdout:
            stage, images = line.split()
            if stage == "train" and int(images) >= done:
                break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    state = json.loads((tmp_path / "killed" / "checkpoint.json").read_text())["state"]
    assert (state["epoch"], state["step"]) != (3, 0)
    train(tmp_path / "killed", replace(TINY, epochs=3))
    for name in ("last.safetensors", "best.safetensors"):
        expected, found = weights_of(tmp_path / "whole", name), weights_of(tmp_path / "killed", name)
        assert expected.keys() == found.keys()
        for key, tensor in expected.items():
            assert torch.equal(tensor, found[key]), f"{name} {key}, killed after images {kills}"
    for expected_row, row in zip(log_of(tmp_path / "whole"), log_of(tmp_path / "killed"), strict=True):
        for column in ("epoch", "step", "lr", "train_loss", "train_top1", "val_top1", "val_top5"):
            assert row[column] == expected_row[column]


def stop_after(out: Path, images: int) -> None:
    """An interrupted training with a checkpoint."""
    sets = open_images(TINY_GLYPHS)

    def report(now: Progress) -> None:
        if now.stage == "train" and now.done > images:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        options = RunOptions("cpu", checkpoint_seconds=0)
        train_backbone(sets, alphabetical_split(sets["train"].classes), TINY, out, options, report)


def test_another_training_is_not_resumed(tmp_path: Path) -> None:
    stop_after(tmp_path, 36)
    with pytest.raises(InvalidInputError, match=r"another training: config learning rate was 0\.05, is 0\.1; repeat"):
        train(tmp_path, replace(TINY, learning_rate=0.1))
    with pytest.raises(InvalidInputError, match="split base was 9 classes, is 18; split novel"):
        train(tmp_path, images="glyphs:20x8x3")
    with pytest.raises(InvalidInputError, match="source images was 72, is 81"):
        train(tmp_path, images="glyphs:10x9x3")
    sets = open_images(TINY_GLYPHS)
    names = sets["train"].classes
    with pytest.raises(InvalidInputError, match=r"split base has 'U\+.*', which it did not"):
        train_backbone(sets, CategorySplit(tuple(names[1:]), tuple(names[:1])), TINY, tmp_path, CPU)
    assert train(tmp_path, replace(TINY, learning_rate=0.1), replace(CPU, restart=True)).epochs == 2


def test_a_damaged_checkpoint_and_a_second_training_in_one_folder(tmp_path: Path) -> None:
    stop_after(tmp_path, 36)
    sets = open_images(TINY_GLYPHS)
    split = alphabetical_split(sets["train"].classes)

    def start_another(now: Progress) -> None:
        train_backbone(sets, split, TINY, tmp_path, CPU)

    with pytest.raises(LockedError, match="another process is training"):
        train_backbone(sets, split, TINY, tmp_path, CPU, start_another)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DamagedError, match="is damaged or no checkpoint"):
        train(tmp_path)


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    wild = replace(TINY, learning_rate=1e32, schedule="constant", epochs=9, warmup_epochs=0.0)
    with pytest.raises(
        DivergedError, match=r"became infinite or no number in epoch 1, step \d, at learning rate 1e\+32"
    ):
        train(tmp_path, wild, RunOptions("cpu", checkpoint_seconds=0))
    path = tmp_path / "checkpoint.safetensors"
    if path.exists():  # the very first step may be the bad one
        assert all(torch.isfinite(tensor).all() for tensor in read_weights(path).tensors.values())
    assert not (tmp_path / "best.safetensors").exists()


# Several processes


@pytest.mark.numeric
def test_synchronised_batch_norm_keeps_names_and_equals_torchs_own_for_one_process(tmp_path: Path) -> None:
    network, same = (build_network("small", 5, seed=1).double() for _ in range(2))
    names = list(network.state_dict())
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        synchronise_batch_norm(network)
        assert list(network.state_dict()) == names
        assert isinstance(network.bn1, SynchronisedBatchNorm2d)
        images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        for one in (network, same):
            one.train()
            one(images).square().sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    for (name, one), other in zip(network.named_parameters(), same.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-9 * float(other.grad.abs().max()), msg=name)
    for name, tensor in same.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], tensor, rtol=1e-12, atol=1e-12)


GRADIENTS = """
import sys, torch
from torch.nn.functional import cross_entropy
from actstore.backbones.construction import build_network
from actstore.backbones.distributed import wrap
from actstore.processes import joined_processes
torch.set_num_threads(1)
images = torch.randn(17, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
targets = torch.arange(17) % 9
one, two = (build_network("small", 9).double().train() for _ in range(2))
cross_entropy(one(images), targets).backward()
with joined_processes(torch.device("cpu")) as (processes, device):
    model = wrap(two, processes, device)
    part = slice(0, 8) if processes.rank == 0 else slice(8, 17)
    (cross_entropy(model(images[part]), targets[part], reduction="sum") * 2 / 17).backward()
for (name, a), b in zip(one.named_parameters(), two.parameters(), strict=True):
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-12, msg=name)
for (name, a), b in zip(one.named_buffers(), two.buffers(), strict=True):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, msg=name)
"""


def two_processes(script: Path) -> subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return start([*launcher, str(script)], GLOO_SOCKET_IFNAME="lo")


@pytest.mark.numeric
def test_gradients_of_two_processes_are_those_of_one(tmp_path: Path) -> None:
    script = tmp_path / "gradients.py"
    script.write_text(GRADIENTS)
    process = two_processes(script)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


@pytest.mark.numeric
def test_two_processes_follow_the_curve_of_one(tmp_path: Path) -> None:
    config = replace(TINY, batch_size=17)  # odd: shares of 8 and 9
    both = two_processes(training_script(tmp_path / "two", config, IN_FLOAT64))
    alone = start([str(training_script(tmp_path / "one", config, IN_FLOAT64))])
    for process in (both, alone):
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    names = ("epoch", "step", "lr", "train_loss", "train_top1", "val_top1", "val_top5")
    for one, two in zip(log_of(tmp_path / "one"), log_of(tmp_path / "two"), strict=True):
        assert [two[name] for name in names] == pytest.approx([one[name] for name in names], rel=1e-6)
    weights = weights_of(tmp_path / "two")
    assert weights.keys() == weights_of(tmp_path / "one").keys()
    for name, tensor in weights_of(tmp_path / "one").items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-7, atol=1e-7 * float(tensor.abs().max()), msg=name)
