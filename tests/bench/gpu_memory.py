"""Host memory that GpuSearch takes for a block of rows, measured where faiss's card is a stand-in that keeps nothing.

python -m tests.bench.gpu_memory [DIM] [ROWS]
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from actstore.search.flat import GpuSearch
from actstore.search.table import unit
from tests import simulated_faiss

MOST = 1.2e9  # bytes


def resident_bytes(field: str) -> int:
    """Of this process: VmRSS now, or VmHWM, the most since `forget`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def host_bytes(rows: torch.Tensor, resident: bool) -> int:
    """Beside the rows themselves, at most, while they are sent to the card block by block."""
    before = resident_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
    engine = GpuSearch(rows, resident=resident)
    if not resident:
        engine._nearest(unit(rows[:2]), 10)
    return resident_bytes("VmHWM") - before


def main() -> int:
    dim, count = (int(given) for given in (sys.argv[1:] + ["2048", "150000"][len(sys.argv) - 1 :]))
    rows = torch.rand(count, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float32).half()
    failed = False
    with pytest.MonkeyPatch.context() as patch:
        card = simulated_faiss.install(patch, keeps=False)
        for resident in (True, False):
            taken = host_bytes(rows, resident)
            blocks = len(card.held if resident else card.sent)
            how = "held on the card" if resident else "sent in every search"
            print(f"{count:,} x {dim} rows {how}, {blocks} blocks: {taken / 1e9:.2f} GB of host memory at most")
            failed |= taken > MOST
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
