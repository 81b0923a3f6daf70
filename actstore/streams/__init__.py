"""Which rows a training step reads (a pure function of seed and step), and batches of them ahead of time.

Imports the store and what stands above it.
"""
