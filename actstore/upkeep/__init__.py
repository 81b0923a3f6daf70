"""Whether a store is whole, and how it is mended; its rows in other chunks, or some of them as a store of their own.

Imports `extraction` and what stands above it. `actstore.verify`, `rechunk` and `select` are made here.
"""
