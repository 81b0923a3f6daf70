"""Accuracy against the number of examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.figures.accuracy_axis import ENDS, set_accuracy_axis
from predictor.figures.style import family_style, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = (
    ("top1_few", "novel top-1 (%)"),
    ("top1_large", "base top-1 (%)"),
    ("harmonic_mean", "harmonic mean of both (%)"),
)


def draw_shots(records: Sequence[Mapping[str, Any]]) -> Figure:
    """records: rows of the table as `predictor.table.records` gives them. Methods that take no support are level."""
    counts = sorted({int(row["shots"]) for row in records if row["shots"] != "all"})
    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in records:
        lines.setdefault((row["method"], row["d_large"]), []).append(row)
    figure = new_figure(12.6, 5.6)
    panels = figure.subplots(1, len(PANELS))
    for panel, (key, label) in zip(panels, PANELS, strict=True):
        for (method, share), rows in lines.items():
            _plot(panel, method, share, rows, key)
        panel.set_xlabel("examples of each novel category")
        set_accuracy_axis(panel, "y", [float(row[key]) for row in records], label)
        panel.set_xticks(counts)
        tidy(panel)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.suptitle("Accuracy against the number of examples, all-way (bars: 95% confidence)")
    return figure


def _plot(panel: Any, method: str, share: str, rows: Sequence[Mapping[str, Any]], key: str) -> None:
    colour, marker = family_style(method)
    is_calibrated = "calibrated" in method
    style = {"100%": "-", "10%": "--"}.get(share, ":")
    if "(base rows too)" in method or "Child" in method:
        style = "--"
    name = method.replace(" (activations)", "") + (f" {share}" if method.startswith(("NN", "Triplet")) else "")
    if rows[0]["shots"] == "all":
        panel.axhline(
            rows[0][key], color=colour, linestyle="--" if "linear" in method else ":", linewidth=1, label=name
        )
        return
    ordered = sorted(rows, key=lambda row: int(row["shots"]))
    values = np.array([float(row[key]) for row in ordered])
    widths = np.array([row.get(f"{key}_ci95") or 0.0 for row in ordered])
    drawn, low, high = (np.clip(one, *ENDS) for one in (values, values - widths, values + widths))
    panel.errorbar(
        [int(row["shots"]) for row in ordered], drawn, yerr=[drawn - low, high - drawn], color=colour, marker=marker,
        mfc=colour if is_calibrated or "phi" not in method else "white", linestyle=style,
        linewidth=2 if is_calibrated else 1.3, markersize=6, label=name, capsize=2, elinewidth=0.8,
    )  # fmt: skip
