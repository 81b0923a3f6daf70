"""Rows out of a split: from mapped chunk files, by ranges of bytes, through a cache, or through Zarr.

Imports `layout` and what stands above it.
"""
