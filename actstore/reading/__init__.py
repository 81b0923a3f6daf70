"""Rows out of a split: from mapped chunk files, by ranges of bytes, through a cache, or through Zarr; and as other
libraries have them.

Imports `layout` and what stands above it.
"""
