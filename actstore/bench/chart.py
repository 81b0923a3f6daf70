"""Bars of a benchmark's figures on a logarithmic scale, one panel per measurement."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from actstore.bench.measure import Result
from actstore.files import write_atomic

OURS, OTHERS = "#0072b2", "#bbbbbb"  # Okabe-Ito blue against grey: safe for colour-blind readers


def draw_bars(results: Sequence[Result], path: Path, title: str) -> None:
    """Results named '<measurement> <contender>', higher is better; ours are blue."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(result.name.split(" ", 1)[0] for result in results))
    figure = Figure(figsize=(5 * len(panels), 4), layout="constrained")
    figure.suptitle(title)
    for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        mine = sorted((r for r in results if r.name.startswith(panel + " ")), key=lambda result: result.value)
        names = [result.name.split(" ", 1)[1] for result in mine]
        colours = [OURS if name.startswith("actstore") else OTHERS for name in names]
        bars = axes.barh(names, [result.value for result in mine], color=colours)
        axes.bar_label(bars, [_short(result.value) for result in mine], padding=3, fontsize=9)
        axes.set_xscale("log")
        axes.margins(x=0.25)
        axes.set_title(f"{panel} ({mine[0].unit}, higher is better)", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix.removeprefix("."), dpi=120)
    write_atomic(path, image.getvalue())


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
