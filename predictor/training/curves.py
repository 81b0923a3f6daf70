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
    from predictor.figures.style import BLACK, BLUE, GREEN, LINES, ORANGE, new_figure, save, tidy

    if not history:
        return
    panels = [panel for panel in curves.panels if set(panel.columns) <= set(history[0])]
    figure = new_figure(5 * len(panels), 4)
    figure.suptitle(curves.title, fontsize=11)
    across = [line[curves.across] for line in history]
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        colours = (BLUE, ORANGE, GREEN) if len(panel.columns) > 1 else (BLACK,)
        for (column, name), colour, dashes in zip(panel.columns.items(), colours, LINES, strict=False):
            values = [panel.factor * line[column] for line in history]
            marker = "o" if len(history) <= 30 else None
            axes.plot(across, values, linestyle=dashes, color=colour, label=name, marker=marker, markersize=3)
        axes.set_ylabel(panel.label)
        axes.set_xlabel(curves.across)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(panel.columns) > 1:
            axes.set_ylim(bottom=0)
            axes.legend(frameon=False)
        tidy(axes)
    save(figure, path)
