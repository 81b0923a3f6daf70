"""Processes part for good: what of gloo outlives its group may abort a process while its interpreter ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = """
import glob, importlib, sys
import torch
from predictor.training.backbones.layers import wrap
from predictor.training.processes import joined_processes

def train():
    with joined_processes(torch.device("cpu")) as (processes, device):
        importlib.import_module("torch.distributed.nn")  # as torch's optimisers do, when one is first made
        network = wrap(torch.nn.Conv2d(3, 2, 1), processes, device)
        network(torch.rand(2, 3, 4, 4)).sum().backward()
        held = [network]
        network.held = held  # by itself
        del network, held
        processes.wait()

train()
names = [open(file).read().strip() for file in glob.glob("/proc/self/task/*/comm")]
print("gloo is left" if any("gloo" in name for name in names) else "gloo is gone", file=sys.stderr)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads have names in /proc")
def test_no_thread_of_gloo_outlives_its_group(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text(TRAINING)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {
        **os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    done = subprocess.run(
        [*launcher, "training.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert (done.stderr.count("gloo is gone"), done.stderr.count("gloo is left")) == (2, 0)
