"""How all pictures look, and how categories and methods are called in them.

Colours are Okabe and Ito's, told apart in grey by their lines and markers too.
"""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actstore.backbones.network import imagenet_names
from actstore.storage.atomic_file import write_atomic
from predictor.protocol.method_key import key_of

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
    "simple-shot": (PINK, "p"),
}
DPI = 130
_WNID = re.compile(r"n\d{8}")
_GLYPH = re.compile(r"U\+([0-9A-F]{4,6})")
_MATHEMATICS = "$^_{}\\"  # what these letters mean to matplotlib


def new_figure(width: float, height: float) -> Figure:
    """Inches. Not of pyplot: nothing is kept in memory, and no display is needed."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.07))


def new_panels(width: float, height: float, across: str, *labels: str) -> tuple[Figure, Any]:
    """A figure and its axes, one panel beside the other. across, labels: what is on their axes."""
    figure = new_figure(width, height)
    panels = figure.subplots(1, len(labels), squeeze=False)[0]
    for panel, label in zip(panels, labels, strict=True):
        panel.set_xlabel(across)
        panel.set_ylabel(label)
        tidy(panel)
    return figure, panels


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


def known_display(name: str) -> str:
    """tench for n01440764, one of ImageNet; A for U+0041, one of the embedded glyphs; other names as they are."""
    if _WNID.fullmatch(name):
        return imagenet_names().get(name, name)
    code = _GLYPH.fullmatch(name)
    if code is None or int(code[1], 16) > 0x10FFFF:
        return name
    character = chr(int(code[1], 16))
    return character if unicodedata.category(character)[0] in "LNPS" else name


def readable(name: str) -> str:
    """The same in a picture; by its code where matplotlib would read it as mathematics."""
    shown = known_display(name)
    return name if shown in _MATHEMATICS else shown


def short_name(row: Mapping[str, Any]) -> str:
    """Of the method of a table's row, with its share of D_large where several are measured."""
    share = f" {row['d_large']}" if key_of(row).is_by_share else ""
    return str(row["method"]).replace(" (activations)", "") + share
