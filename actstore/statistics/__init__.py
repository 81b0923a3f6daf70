"""Count, mean and variance of every class in one pass, kept in the store under the hash of its content.

Imports `streams` and what stands above it. dask lives here.
"""
