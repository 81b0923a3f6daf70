from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from actstore.compute.tensors import reuse_freed_memory
torch.set_num_threads(1)
took = sys.argv[1] == "reuse" and reuse_freed_memory()
layers = [torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3), torch.nn.ReLU()]
network, images = torch.nn.Sequential(*layers), torch.rand(16, 3, 96, 96)  # outputs of 35 MiB, freed in every step
def use():
    network(images).sum().backward()
use()
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
use()
print(int(took), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's settings")
def test_the_buffers_of_a_network_are_used_again() -> None:
    faults = {}
    for mode in ("plain", "reuse"):
        done = subprocess.run([sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=True)
        took, count = map(int, done.stdout.split())
        if mode == "reuse" and not took:
            pytest.skip("this C library has no mallopt")
        faults[mode] = count
    assert faults["reuse"] < faults["plain"] / 2
