"""Whether a store is whole, and how it is mended.

Imports `extraction` and what stands above it.
"""
