"""Images through a backbone into a store, here or on a cluster; which network made a store, and its rows once more.

Imports `backbones`, `images` and what stands above them.
"""
