"""What a training leaves for people to read: a CSV with a line per epoch, and a plot of its curves."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from actstore.files import write_atomic

# column -> how it is written
COLUMNS = {
    "epoch": "d",
    "step": "d",
    "lr": ".6g",
    "train_loss": ".6f",
    "train_top1": ".6f",
    "val_top1": ".6f",
    "val_top5": ".6f",
    "images_per_second": ".1f",
    "seconds": ".1f",
}
# Okabe-Ito: told apart by colour-blind readers too; dashes and markers do so in grey
LOSS, TRAIN, TOP1, TOP5, RATE = "#000000", "#999999", "#0072b2", "#d55e00", "#999999"


def write_log(path: Path, history: Sequence[Mapping[str, Any]]) -> None:
    """The whole file anew: a resumed training never leaves an epoch twice."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in history:
        writer.writerow([format(row[name], form) for name, form in COLUMNS.items()])
    write_atomic(path, text.getvalue().encode())


def draw_curves(path: Path, history: Sequence[Mapping[str, Any]], title: str) -> None:
    """Loss and learning rate on the left, accuracies on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(title, fontsize=11)
    left, right = figure.subplots(1, 2, gridspec_kw={"wspace": 0.1})
    epochs = [row["epoch"] for row in history]
    _plot(left, epochs, [row["train_loss"] for row in history], LOSS, "-", "training loss")
    rates = left.twinx()
    _plot(rates, epochs, [row["lr"] for row in history], RATE, ":", "learning rate (right axis)")
    left.set_ylabel("loss per image")
    rates.set_ylabel("learning rate", color="#666666")
    rates.set_ylim(bottom=0)
    left.legend(handles=[*left.lines, *rates.lines], loc="upper right", frameon=False, fontsize=9)
    for key, colour, line, name in (
        ("val_top5", TOP5, "--", "held out, top-5"),
        ("val_top1", TOP1, "-", "held out, top-1"),
        ("train_top1", TRAIN, "-.", "training, top-1 (augmented)"),
    ):
        _plot(right, epochs, [100 * row[key] for row in history], colour, line, name)
    right.set_ylabel("accuracy (%)")
    right.set_ylim(0, 101)
    right.legend(loc="lower right", frameon=False, fontsize=9)
    for axes in (left, rates, right):
        axes.spines["top"].set_visible(False)
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
    right.spines["right"].set_visible(False)
    right.grid(axis="y", color="#dddddd", linewidth=0.6)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    write_atomic(path, image.getvalue())


def _plot(axes: Any, epochs: Sequence[int], values: Sequence[float], colour: str, line: str, name: str) -> None:
    marker = "o" if len(epochs) <= 30 else None
    axes.plot(epochs, values, line, color=colour, label=name, marker=marker, markersize=3)
