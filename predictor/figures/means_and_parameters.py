"""Means and parameters of all categories side by side, groups of similar categories highlighted: Figure 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.figures.class_map import NEIGHBOURS, ClassMap
from predictor.figures.naming import readable
from predictor.figures.style import COLOURS, GREY, MARKERS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAINT = "#c8c8c8"
NAMED = 8  # members of a group that the legend names


def draw_class_maps(found: ClassMap) -> Figure:
    """Left t-SNE of the mean activations, right of the parameters; same colour and marker, same categories."""
    figure = new_figure(12, 6.9)
    left, right = figure.subplots(1, 2)
    means, parameters = np.asarray(found.means), np.asarray(found.parameters)
    _draw_novel(left, means, set(range(found.n_base, len(found.names))))
    place = {category: row for row, category in enumerate(found.with_parameters)}
    novel = {place[category] for category in range(found.n_base, len(found.names)) if category in place}
    _draw_novel(right, parameters, novel)
    for number, group in enumerate(found.groups):
        style = {"color": COLOURS[number], "marker": MARKERS[number], "s": 46, "edgecolors": "black", "linewidths": 0.6}
        names = " ".join(readable(found.names[category]) for category in group[:NAMED])
        left.scatter(*means[group].T, **style, zorder=3, label=names)
        right.scatter(*parameters[[place[category] for category in group]].T, **style, zorder=3)
    left.set_title(f"mean activation of {len(found.names):,} categories")
    right.set_title(f"{found.parameters_are} of {len(place):,} categories")
    for panel in (left, right):
        panel.set_xticks([])
        panel.set_yticks([])
        panel.set_aspect("equal", adjustable="datalim")
        panel.spines[:].set_color(GREY)
    handles, names = left.get_legend_handles_labels()
    columns = 1 if max(map(len, names), default=0) > 60 else 3
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    figure.suptitle(
        f"t-SNE. Of a category's {NEIGHBOURS} nearest by mean, {found.agreement:.0%} are also nearest by parameters "
        f"({found.chance:.1%} by chance)"
    )
    return figure


def _draw_novel(panel: Any, places: Any, novel: set[int]) -> None:
    is_novel = np.isin(np.arange(len(places)), list(novel))
    panel.scatter(*places[~is_novel].T, s=9, color=FAINT, label="other base categories", zorder=1)
    if novel:
        panel.scatter(
            *places[is_novel].T, s=16, facecolors="none", edgecolors="#555555", linewidths=0.8,
            label="novel categories", zorder=2,
        )  # fmt: skip
