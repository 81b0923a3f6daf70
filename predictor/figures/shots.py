"""Accuracy against the number of examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.figures.accuracy_axis import ENDS, set_accuracy_axis
from predictor.figures.naming import short_name
from predictor.figures.style import family_style, new_figure, tidy
from predictor.protocol.method_key import MethodKey, key_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = (
    ("top1_few", "novel top-1 (%)"),
    ("top1_large", "base top-1 (%)"),
    ("harmonic_mean", "harmonic mean of both (%)"),
)

DASHED = ("child", "imprint-base-rows", "oracle-linear")  # told from another method of the same colour


def draw_shots(records: Sequence[Mapping[str, Any]]) -> Figure:
    """records: rows of the all-way table. Methods that take no support are level."""
    counts = sorted({int(row["shots"]) for row in records if row["shots"] != "all"})
    lines: dict[MethodKey, list[Mapping[str, Any]]] = {}
    for row in records:
        lines.setdefault(key_of(row), []).append(row)
    figure = new_figure(12.6, 5.6)
    panels = figure.subplots(1, len(PANELS))
    for panel, (key, label) in zip(panels, PANELS, strict=True):
        for method, rows in lines.items():
            _plot(panel, method, rows, key)
        panel.set_xlabel("examples of each novel category")
        set_accuracy_axis(panel, "y", [float(row[key]) for row in records], label)
        panel.set_xticks(counts)
        tidy(panel)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.suptitle("Accuracy against the number of examples, all-way (bars: 95% confidence)")
    return figure


def _plot(panel: Any, method: MethodKey, rows: Sequence[Mapping[str, Any]], key: str) -> None:
    colour, marker = family_style(method.key)
    style = "--" if method.key in DASHED else {"100%": "-", "10%": "--"}.get(method.share, ":")
    name = short_name(rows[0])
    if rows[0]["shots"] == "all":
        level = "--" if method.key in DASHED else ":"
        panel.axhline(rows[0][key], color=colour, linestyle=level, linewidth=1, label=name)
        return
    ordered = sorted(rows, key=lambda row: int(row["shots"]))
    values = np.array([float(row[key]) for row in ordered])
    widths = np.array([row.get(f"{key}_ci95") or 0.0 for row in ordered])
    drawn, low, high = (np.clip(one, *ENDS) for one in (values, values - widths, values + widths))
    panel.errorbar(
        [int(row["shots"]) for row in ordered], drawn, yerr=[drawn - low, high - drawn], color=colour, marker=marker,
        mfc=colour if method.is_calibrated or not method.is_phi else "white", linestyle=style,
        linewidth=2 if method.is_calibrated else 1.3, markersize=6, label=name, capsize=2, elinewidth=0.8,
    )  # fmt: skip
