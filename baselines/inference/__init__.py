"""The inference comparison of the paper, 37 against 6.8 ms, and what learning by training costs.

Imports `actstore` and `predictor.figures`.
"""
