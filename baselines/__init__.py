"""One baseline per file, each with its citation on top; `registry.py` names them for `ppa eval`.

Imports `predictor.protocol`, `predictor.training` and `actstore`.
"""
