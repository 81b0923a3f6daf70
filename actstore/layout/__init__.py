"""What the bytes of a store mean: chunk files, the ledger, Zarr metadata, labels, ids and the class index.

Imports `storage` and `compute`. zarr lives here.
"""
