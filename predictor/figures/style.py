"""How all pictures look: Okabe-Ito colours, told apart in grey by their lines and markers too."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actstore.storage.atomic_file import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLACK, BLUE, ORANGE, GREEN, GREY = "#000000", "#0072b2", "#d55e00", "#009e73", "#999999"
SKY, PINK, YELLOW = "#56b4e9", "#cc79a7", "#e69f00"
COLOURS = (BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, BLACK)  # of groups
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 3)))
FAMILIES = {  # colour and marker by a method's key
    "phi2star": (SKY, "v"),
    "phi2": (ORANGE, "o"),
    "phi1": (PINK, "s"),
    "nn": (BLUE, "^"),
    "triplet": (GREEN, "D"),
    "triplet-images": (GREEN, "D"),
    "finetune": (YELLOW, "P"),
    "finetune-images": (YELLOW, "P"),
    "child": (YELLOW, "d"),
    "oracle-nn": (BLACK, "x"),
    "oracle-linear": (BLACK, "+"),
    "imprint-base-rows": (GREY, "*"),
    "imprint": (GREY, "<"),
}
DPI = 130


def new_figure(width: float, height: float) -> Figure:
    """Inches. Not of pyplot: nothing is kept in memory, and no display is needed."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.07))


def tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def save(figure: Figure, path: Path) -> None:
    """PNG or SVG by the suffix, written atomically."""
    from matplotlib import rc_context

    image = io.BytesIO()
    kind = path.suffix.removeprefix(".") or "png"
    # no date and a fixed salt for ids: the same figure is the same file; text becomes shapes, as fonts differ
    metadata = {"Date": None} if kind == "svg" else None
    with rc_context({"svg.hashsalt": "actstore", "svg.fonttype": "path"}):
        figure.savefig(image, format=kind, dpi=DPI, metadata=metadata)
    write_atomic(path, image.getvalue())


def save_both(figure: Figure, folder: Path, name: str) -> Path:
    """NAME.png and NAME.svg; the path of the first."""
    for suffix in (".svg", ".png"):
        save(figure, folder / (name + suffix))
    return folder / f"{name}.png"


def family_style(key: str) -> tuple[str, str]:
    """Colour and marker of a method by its key, the same in every figure."""
    return FAMILIES.get(key, (GREY, "H"))
