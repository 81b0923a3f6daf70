"""Pictures, each made from plain data. matplotlib is imported only when one is drawn.

Imports `protocol` and `actstore`. matplotlib and scikit-learn live here.
"""
