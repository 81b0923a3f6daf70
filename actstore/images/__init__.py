"""Where images come from: class folders, tars, lists, ILSVRC's layout, drawn glyphs; and how they are decoded.

Imports `tables` and what stands above it.
"""
