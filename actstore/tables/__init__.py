"""Rows from and to files of other tools: npy, npz, h5, parquet, csv, safetensors; generated rows.

Imports `search` and what stands above it. What others may use is in `__all__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily

if TYPE_CHECKING:
    from actstore.tables.array_files import as_text
    from actstore.tables.exporting import export, exported_files
    from actstore.tables.importing import ImportRequest, append_file, import_file, read_column
    from actstore.tables.row_source import Rounding

__all__ = [
    "ImportRequest",
    "Rounding",
    "append_file",
    "as_text",
    "export",
    "exported_files",
    "import_file",
    "read_column",
]

# Loaded on first use: whoever embeds a photo reads no file of rows, and waits for no zarr.
__getattr__, __dir__ = lazily(__name__)
