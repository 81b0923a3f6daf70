"""Matrices as heat maps: phi and its channels (Figure 5 of the paper), and how alike representations are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.figures.style import GREY, LINES, family_style, new_figure, tidy
from predictor.protocol.results import LABELS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 256  # channels, as in the paper
FLOOR = 1e-5  # below, the logarithm shows noise


def draw_channels(weight: NDArray[Any], similarities: Mapping[str, NDArray[Any]]) -> Figure:
    """weight: phi1's matrix (dim, dim); its upper left part is shown. similarities: phi -> OS(k) for k = 1..dim."""
    count = min(SHOWN, len(weight))
    figure = new_figure(11.4 if similarities else 6, 5)
    panels = figure.subplots(1, 2 if similarities else 1, squeeze=False)[0]
    _draw_matrix(figure, panels[0], np.asarray(weight)[:count, :count])
    panels[0].set_title(f"phi1, upper left {count} × {count} of {len(weight)} × {len(weight)}")
    if similarities:
        _draw_curves(panels[1], similarities)
    return figure


def _draw_matrix(figure: Figure, panel: Any, part: NDArray[Any]) -> None:
    from matplotlib.colors import LogNorm

    size = np.maximum(np.abs(part), FLOOR)
    low = max(float(np.quantile(size, 0.02)), FLOOR)
    image = panel.imshow(size, norm=LogNorm(low, max(float(size.max()), 10 * low)), cmap="cividis", rasterized=True)
    figure.colorbar(image, ax=panel, shrink=0.85, label="|weight|, log scale")
    panel.set_xlabel("channel of the activation")
    panel.set_ylabel("channel of the parameters")


def _draw_curves(panel: Any, similarities: Mapping[str, NDArray[Any]]) -> None:
    for number, (kind, curve) in enumerate(similarities.items()):
        ks = np.arange(1, len(curve) + 1)
        name = LABELS[kind] + ("" if kind == "phi1" else ", first layer")
        panel.plot(ks, curve, color=family_style(kind)[0], linestyle=LINES[number], label=name, linewidth=1.6)
    dim = len(next(iter(similarities.values())))
    panel.plot([1, dim], [1 / dim, 1], color=GREY, linestyle=":", label="random order (k / dim)")
    panel.set_xlabel("k channels of most impact")
    panel.set_ylabel("share in common, OS(k)")
    panel.set_ylim(0, 1.02)
    panel.set_xlim(0, dim)
    panel.set_title("Top-k similarity with w_large^pt")
    panel.legend(frameon=False, loc="lower right")
    tidy(panel)


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
