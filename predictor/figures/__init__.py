"""Pictures: one figure per file, each made from plain data. matplotlib is imported only when one is drawn.

Imports `protocol` and `actstore`. matplotlib and scikit-learn live here.
"""

from predictor.figures.style import save, save_both, tidy
from predictor.figures.trade_off import draw_trade_off

__all__ = ["draw_trade_off", "save", "save_both", "tidy"]
