"""How alike representations are, pair by pair: a heat map for each measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.figures.style import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_NUMBERS = 12  # representations: of more, figures in the cells could not be read


def draw_similarities(names: Sequence[str], matrices: Mapping[str, NDArray[Any]]) -> Figure:
    """matrices: measure -> (n, n) similarities of n representations; all panels share one scale."""
    side = max(2.6, 0.62 * len(names) + 0.9)
    figure = new_figure(side * len(matrices) + 2.2, side + 0.8)
    panels = figure.subplots(1, len(matrices), squeeze=False)[0]
    lowest = min(0.0, min(float(np.nanmin(matrix)) for matrix in matrices.values()))
    images = []
    for number, (panel, (measure, matrix)) in enumerate(zip(panels, matrices.items(), strict=True)):
        images.append(panel.imshow(matrix, vmin=lowest, vmax=1, cmap="cividis"))
        panel.set_title(measure)
        panel.set_xticks(range(len(names)), names, rotation=45, ha="right")
        panel.set_yticks(range(len(names)), names if number == 0 else [""] * len(names))
        if len(names) <= _MOST_NUMBERS:
            _write_values(panel, matrix, lowest)
    figure.colorbar(images[0], ax=panels.tolist(), shrink=0.85, label="similarity")
    return figure


def _write_values(panel: Any, matrix: NDArray[Any], lowest: float) -> None:
    for (row, column), value in np.ndenumerate(matrix):
        shade = "black" if value > (1 + lowest) / 2 else "white"
        text = "–" if np.isnan(value) else f"{value:.2f}"
        panel.text(column, row, text, ha="center", va="center", fontsize=8, color="black" if text == "–" else shade)
