"""Rows out of a split: from mapped chunk files, by ranges of bytes, or through a cache; and as other libraries have
them.

Imports `layout` and what stands above it.
"""
