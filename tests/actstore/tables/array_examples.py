"""Rows and labels, and array files of every ending that hold them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet
from safetensors.numpy import save_file

VALUES = np.random.default_rng(0).random((300, 16), dtype=np.float32)
LABELS = np.arange(300) * 5 // 300


def save(path: Path) -> Path:
    if path.suffix == ".npy":
        np.save(path, VALUES)
    elif path.suffix == ".npz":
        np.savez_compressed(path, activations=VALUES)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["activations"] = VALUES
    elif path.suffix == ".safetensors":
        save_file({"activations": VALUES}, path)
    else:
        rows = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(VALUES.reshape(-1)), 16)
        pyarrow.parquet.write_table(pyarrow.table({"activations": rows}), path)
    return path
