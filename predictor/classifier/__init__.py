"""A classifier that learns a category from its first example: its file, and its export to other libraries.

Imports `phi` and what stands above it.
"""
