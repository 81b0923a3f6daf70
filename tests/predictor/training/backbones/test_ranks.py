"""Several processes that train one backbone equal one."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from actstore.backbones.construction import build_network
from predictor.training.backbones.layers import SynchronisedBatchNorm2d, synchronise_batch_norm
from predictor.training.loop import read_log
from tests.predictor.training.backbones.tiny import TINY, start, training_script, weights_of

pytestmark = pytest.mark.numeric

# Training is chaotic: what processors round differently in float32 grows a hundred thousand times in ten steps.
IN_FLOAT64 = """
from predictor.training.backbones import batches as accuracy, trainee
build, feed = trainee.build_network, trainee.to_network
def feed_precisely(*given):
    images, targets = feed(*given)
    return images.double(), targets
trainee.build_network = lambda *given: build(*given).double()
trainee.to_network = accuracy.to_network = feed_precisely
"""


def test_synchronised_batch_norm_keeps_names_and_equals_torchs_own_for_one_process(tmp_path: Path) -> None:
    network, same = (build_network("small", 5, seed=1).double() for _ in range(2))
    names = list(network.state_dict())
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        synchronise_batch_norm(network, torch.device("cpu"))
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


def test_synchronised_batch_norm_of_sixteen_bits_sums_in_more(tmp_path: Path) -> None:
    images = torch.randn(64, 8, 9, 9, generator=torch.Generator().manual_seed(0)).add_(3).to(torch.bfloat16)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        own, torchs = SynchronisedBatchNorm2d(8), torch.nn.BatchNorm2d(8)
        normalised = own(images)
        expected = torchs(images.float())
    finally:
        torch.distributed.destroy_process_group()
    assert normalised.dtype == torch.bfloat16
    torch.testing.assert_close(normalised.float(), expected, rtol=0, atol=2**-6)  # values up to 4 are rounded to 2^-6
    torch.testing.assert_close(own.running_var, torchs.running_var, rtol=1e-4, atol=1e-5)


GRADIENTS = """
import sys, torch
from torch.nn.functional import cross_entropy
from actstore.backbones.construction import build_network
from predictor.training.backbones.layers import wrap
from predictor.training.processes import joined_processes
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


def test_gradients_of_two_processes_are_those_of_one(tmp_path: Path) -> None:
    script = tmp_path / "gradients.py"
    script.write_text(GRADIENTS)
    process = two_processes(script)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def test_two_processes_follow_the_curve_of_one(tmp_path: Path) -> None:
    config = replace(TINY, batch_size=17)  # odd: shares of 8 and 9
    both = two_processes(training_script(tmp_path / "two", config, IN_FLOAT64))
    alone = start([str(training_script(tmp_path / "one", config, IN_FLOAT64))])
    for process in (both, alone):
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    names = ("epoch", "step", "lr", "train_loss", "train_top1", "val_top1", "val_top5")
    for one, two in zip(read_log(tmp_path / "one"), read_log(tmp_path / "two"), strict=True):
        assert [two[name] for name in names] == pytest.approx([one[name] for name in names], rel=1e-6)
    weights = weights_of(tmp_path / "two")
    assert weights.keys() == weights_of(tmp_path / "one").keys()
    for name, tensor in weights_of(tmp_path / "one").items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-7, atol=1e-7 * float(tensor.abs().max()), msg=name)
