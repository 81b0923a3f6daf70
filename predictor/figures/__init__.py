"""Pictures, each made from plain data. matplotlib is imported only when one is drawn.

Imports `protocol` and `actstore`. matplotlib and scikit-learn live here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily

if TYPE_CHECKING:
    from predictor.figures.class_map import draw_similarities
    from predictor.figures.style import save

__getattr__, __dir__ = lazily(__name__)
