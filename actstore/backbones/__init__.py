"""Networks that turn images into activations: their weights and transforms, loaded by name, file or a user's code.

Imports `images` and what stands above it.
"""
