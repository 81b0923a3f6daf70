"""curves.png of a training: columns of its log over its steps or epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Panel:
    """columns: of the log, with their names for people; one panel of curves.png, left out where the log has none."""

    label: str
    columns: Mapping[str, str]
    factor: float = 1.0


@dataclass(frozen=True)
class Curves:
    panels: tuple[Panel, ...]
    across: str = "step"
    title: str = ""


def draw_curves(path: Path, history: Sequence[Mapping[str, float]], curves: Curves) -> None:
    """One panel beside the other; nothing where the log has no line."""
    from predictor.figures.lines import plot_log
    from predictor.figures.style import BLACK, BLUE, GREEN, LINES, ORANGE, new_panels, save

    if not history:
        return
    panels = [panel for panel in curves.panels if set(panel.columns) <= set(history[0])]
    figure, all_axes = new_panels(5 * len(panels), 4, curves.across, *(panel.label for panel in panels))
    figure.suptitle(curves.title, fontsize=11)
    for axes, panel in zip(all_axes, panels, strict=True):
        colours = (BLUE, ORANGE, GREEN) if len(panel.columns) > 1 else (BLACK,)
        for (column, name), colour, dashes in zip(panel.columns.items(), colours, LINES, strict=False):
            style = {"linestyle": dashes, "color": colour, "label": name}
            plot_log(axes, history, curves.across, column, panel.factor, **style)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(panel.columns) > 1:
            axes.set_ylim(bottom=0)
            axes.legend(frameon=False)
    save(figure, path)
