"""Accuracy and harmonic mean as categories are added session by session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from predictor.figures.style import family_style, new_figure, tidy
from predictor.protocol.method_key import key_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = (("accuracy", "accuracy over all categories (%)"), ("harmonic_mean", "harmonic mean of base and novel (%)"))


def draw_sessions(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """rows: as `predictor.report.session_table.session_rows` gives them; published ones are points at the end."""
    figure = new_figure(11.0, 5.2)
    panels = figure.subplots(1, len(PANELS))
    ours = [row for row in rows if "published" not in row]
    for panel, (name, label) in zip(panels, PANELS, strict=True):
        for row in ours:
            colour, marker = family_style(key_of(row).key)
            points = [(x, y) for x, y in zip(row["categories"], row[name], strict=True) if y is not None]
            panel.plot(*zip(*points, strict=True), color=colour, marker=marker, label=row["method"],
                       linestyle="-" if key_of(row).is_calibrated else "--")  # fmt: skip
        panel.set_xlabel("categories known")
        panel.set_ylabel(label)
        tidy(panel)
    last = ours[0]["categories"][-1]
    for row in rows:
        if "published" in row:
            panels[0].plot([last], [row["last_accuracy"]], marker="x", color="grey", linestyle="")
            panels[0].annotate(f" {row['method']} ({row['backbone']})", (last, row["last_accuracy"]), fontsize=7)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"{ours[0]['way']} categories a session from {ours[0]['shots']} examples, no training in a session")
    return figure
