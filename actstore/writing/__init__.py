"""Rows into a split: checked, gathered to chunks, kept while uncommitted, committed in one rename.

Imports `reading` and what stands above it.
"""
