"""`make gpu`: the tests marked gpu, then inference at ImageNet's size on the device, then one page about both.

python -m tests.bench.gpu [PAGE.md]. Written without a GPU at hand: never yet run on one.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

from tests.bench.gpu_page import to_page

ROWS = "1200000x2048"  # ImageNet's training images through a ResNet-50; 4.9 GB in fp16
RESULTS = Path("bench-out/gpu.json")


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


def machine() -> dict[str, str]:
    import faiss
    import torch

    return {
        "GPU, driver, memory": driver(),
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}",
        "faiss": f"{faiss.__version__}, {faiss.get_num_gpus() if hasattr(faiss, 'get_num_gpus') else 0} GPUs",
        "Python": f"{platform.python_version()} on {platform.platform()}",
        "rows": f"{ROWS}, generated",
    }


def main() -> int:
    if reason := missing():
        print(reason, file=sys.stderr)
        return 1
    tested = subprocess.run([sys.executable, "-m", "pytest", "-m", "gpu"], capture_output=True, text=True, check=False)
    print(tested.stdout, end="", flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    ppa = str(Path(sys.executable).with_name("ppa"))
    command = [ppa, "bench-inference", "--synthetic", ROWS, "--device", "cuda", "--batch", "1", "--batch", "32"]
    if subprocess.run([*command, "--out", str(RESULTS)], check=False).returncode:
        return 1
    page = Path(sys.argv[1] if len(sys.argv) > 1 else "gpu-report.md")
    outcome = tested.stdout.strip().splitlines()[-1] if tested.stdout.strip() else "nothing was said"
    page.write_text(to_page(json.loads(RESULTS.read_text()), machine(), outcome.strip("= ")), "utf-8")
    print(f"{page} written")
    return tested.returncode


if __name__ == "__main__":
    sys.exit(main())
