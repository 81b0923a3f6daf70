"""Pictures of a training and of the base/novel trade-off. Okabe-Ito colours, told apart in grey by their lines too."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actstore.files import write_atomic
from actstore.run_files import LOG

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLACK, BLUE, ORANGE, GREEN, GREY = "#000000", "#0072b2", "#d55e00", "#009e73", "#999999"


def draw_training_curves(folder: Path) -> None:
    """curves.png from log.csv: the loss, and where it was measured the held-out accuracy."""
    from matplotlib.figure import Figure

    with (folder / LOG).open(newline="") as file:
        lines = [{key: float(value) for key, value in line.items()} for line in csv.DictReader(file)]
    if not lines:
        return
    measured = "base_top1" in lines[0]
    figure = Figure(figsize=(10 if measured else 5, 4), layout="constrained")
    panels = figure.subplots(1, 2 if measured else 1, squeeze=False)[0]
    steps = [line["step"] for line in lines]
    panels[0].plot(steps, [line["loss"] for line in lines], color=BLACK)
    panels[0].set_ylabel("training loss")
    if measured:
        for key, colour, style, name in (
            ("base_top1", BLUE, "-", "base categories"),
            ("novel_top1", ORANGE, "--", "novel categories, 1 shot"),
            ("harmonic", GREEN, ":", "harmonic mean"),
        ):
            panels[1].plot(steps, [line[key] for line in lines], style, color=colour, label=name)
        panels[1].set_ylabel("held-out top-1, all-way (%)")
        panels[1].set_ylim(bottom=0)
        panels[1].legend(frameon=False)
    for panel in panels:
        panel.set_xlabel("step")
        tidy(panel)
    save(figure, folder / "curves.png")


def draw_trade_off(path: Path, curves: Mapping[str, Sequence[Any]], points: Sequence[tuple[str, float, float]]) -> None:
    """curves: name -> (novel accuracies, base accuracies) over all biases; points: (label, novel, base)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    styles = ("-", "--", ":", "-.")
    for (name, (novel, base)), style, colour in zip(curves.items(), styles, (BLUE, ORANGE, GREEN, BLACK), strict=False):
        axes.plot(novel, base, style, color=colour, label=name)
    for number, (label, novel, base) in enumerate(points):
        axes.plot([novel], [base], "osD^v"[number % 5], color=BLACK, markersize=7, label=label)
    axes.set_xlabel("novel top-1 (%)")
    axes.set_ylabel("base top-1 (%)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)
    tidy(axes)
    save(figure, path)


def tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def save(figure: Figure, path: Path) -> None:
    """PNG or SVG by the suffix, written atomically."""
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix.removeprefix(".") or "png", dpi=130)
    write_atomic(path, image.getvalue())
