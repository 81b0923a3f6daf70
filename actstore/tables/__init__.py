"""Rows from and to files of other tools: npy, npz, h5, parquet, csv, safetensors; generated rows.

Imports `search` and what stands above it.
"""
