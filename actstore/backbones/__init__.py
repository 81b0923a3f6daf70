"""Networks that turn images into activations, and how to load one by name, by file or from a user's own code."""
