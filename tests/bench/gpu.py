"""`make gpu`: the tests marked gpu, every path on the card against the CPU (gpu_checks.py), then inference at
ImageNet's size, and one page about all of it.

python -m tests.bench.gpu [PAGE.md] [--device cuda:1] [--quick]. Written without a GPU at hand: never yet run on one.
With --quick and --device cpu the tests run it, so that it is known to run.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.gpu_page import to_page

ROWS, QUICK_ROWS = "1200000x2048", "3000x32"  # ImageNet's training images through a ResNet-50: 4.9 GB in fp16
SMALL = ["--seconds", "0.01", "--backbone", "small", "--threads", "1", "--approximate", "none", "--no-fp32"]


def driver() -> str:
    """Name, driver and memory of every GPU; empty where the driver finds none."""
    ask = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return "; ".join(done.stdout.strip().splitlines()) if done.returncode == 0 else ""


def missing() -> str | None:
    """Why nothing can be measured here, in one line."""
    if not driver():
        return "make gpu needs an NVIDIA GPU, but nvidia-smi finds none here; nothing was run"
    import torch

    if torch.version.cuda is None:
        return (
            f"there is a GPU, but torch {torch.__version__} is built for CPUs; install a CUDA build of this version "
            f"into {sys.prefix} (pytorch.org, 'Get started') and repeat make gpu"
        )
    if not torch.cuda.is_available():
        return (
            f"there is a GPU that torch {torch.__version__} cannot use; update the driver for CUDA {torch.version.cuda}"
        )
    return None


def machine(device: str, rows: str) -> dict[str, str]:
    import faiss
    import torch

    return {
        "GPU, driver, memory": driver() or f"no NVIDIA GPU here; device {device}",
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}",
        "faiss": f"{faiss.__version__}, {faiss.get_num_gpus() if hasattr(faiss, 'get_num_gpus') else 0} GPUs",
        "Python": f"{platform.python_version()} on {platform.platform()}",
        "rows": f"{rows}, generated",
    }


def run_tests() -> tuple[str, bool]:
    """How the tests marked gpu ended, in pytest's last line."""
    tested = subprocess.run([sys.executable, "-m", "pytest", "-m", "gpu"], capture_output=True, text=True, check=False)
    print(tested.stdout, end="", flush=True)
    lines = tested.stdout.strip().splitlines() or ["nothing was said"]
    return lines[-1].strip("= "), tested.returncode == 0


def bench_inference(out: Path, device: str, rows: str, more: list[str]) -> None:
    from cli.ppa import main as ppa

    command = ["bench-inference", "--synthetic", rows, "--device", device, "--batch", "1", "--batch", "32"]
    ppa([*command, "--out", str(out), *more], standalone_mode=False)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("page", nargs="?", type=Path, default=Path("gpu-report.md"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small, and without the tests marked gpu")
    parser.add_argument("--child", type=Path, help="a process of two that train phi in this folder")
    asked = parser.parse_args(arguments)
    if asked.device.startswith("cuda") and (reason := missing()):
        print(reason, file=sys.stderr)
        return 1
    from tests.bench.gpu_checks import QUICK, Bench, Size

    size = QUICK if asked.quick else Size()
    if asked.child is not None:
        Bench(asked.child, asked.device, size).train_phi("phi-two", asked.device)
        return 0
    tests, passed = ("left out", True) if asked.quick else run_tests()
    with tempfile.TemporaryDirectory(prefix="actstore-gpu-") as scratch:
        outcomes = []
        for outcome in Bench(Path(scratch), asked.device, size).run():
            print(f"{outcome.name}: {outcome.found}", flush=True)
            outcomes.append(outcome)
        rows, results = QUICK_ROWS if asked.quick else ROWS, Path(scratch) / "inference.json"
        bench_inference(results, asked.device, rows, SMALL if asked.quick else [])
        page = to_page(json.loads(results.read_text()), machine(asked.device, rows), tests, outcomes)
    asked.page.write_text(page, "utf-8")
    print(f"{asked.page} written")
    return int(not passed or any(outcome.passed is False for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
