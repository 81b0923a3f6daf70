"""A map as one HTML page: typed arrays for its script, compressed, in base64; images as they are."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actstore.images.html_page import html_page
from actstore.layout.columns import Texts
from actstore.maps.colouring import Categories, Numbers, scales_of
from actstore.maps.layout import scaled
from actstore.maps.thumbnails import ACROSS, SIDE, make_thumbnails
from actstore.streams.sampling import Stream, generator

if TYPE_CHECKING:
    from actstore.maps.making import Map

_SHOWN_NEIGHBOURS = 5
_NOBODY = 0xFFFFFFFF  # stands for no neighbour
SCRIPTS = ("data.js", "drawing.js", "finding.js", "labels.js", "panel.js", "input.js", "main.js")


def make_page(
    made: Map, color: str | None, thumbnails: int, images: Path | None, progress: Callable[[int], None] | None
) -> tuple[str, list[str]]:
    """And all notes."""
    order = generator(made.seed, 1, Stream.MAPPED_ROWS).permutation(len(made))  # so that no class covers those before
    rows, positions = made.rows[order], made.positions[order]
    scales, notes = scales_of(made.split, rows, positions, color)
    drawn = generator(made.seed, 2, Stream.MAPPED_ROWS).permutation(len(made))[: max(0, thumbnails)]
    found = make_thumbnails(made.split, rows, np.sort(drawn), images, progress)
    if found.note is not None:
        notes.append(found.note)
    elif len(found.points) and len(drawn) < len(made):
        notes.append(f"thumbnails of {len(found.points):,} of {len(made):,} rows")
    arrays: dict[str, NDArray[Any]] = {
        "places": scaled(positions), "rows": rows.astype(np.uint32), "neighbours": _neighbours(made, order),
        "pictured": found.points.astype(np.uint32), **_ids(made, rows),
        **{f"scale{number}": _values(scale) for number, scale in enumerate(scales)},
    }  # fmt: skip
    notes = [*made.notes, *notes]
    about = {
        "points": len(made), "side": SIDE, "across": ACROSS, "split": made.split.name, "method": made.method,
        "notes": notes, "scales": [_describe(scale) for scale in scales],
    }  # fmt: skip
    return _page(made, about, arrays, found.sheets), notes


def _page(made: Map, about: dict[str, Any], arrays: dict[str, NDArray[Any]], sheets: tuple[bytes, ...]) -> str:
    folder = files(__package__) / "page"
    parts = [(folder / "map.html").read_text("utf-8"), *_data(about, arrays)]
    parts += [_element("text/plain", f"sheet{number}", _base64(sheet)) for number, sheet in enumerate(sheets)]
    code = "\n".join((folder / name).read_text("utf-8") for name in SCRIPTS)
    parts.append(f'<script>\n"use strict";\n{code}</script>')
    store = made.split.store_path.name
    said = f"{len(made):,} rows of {made.split.name}, {made.split.dim} features, laid out by {made.method.upper()}"
    return html_page(f"Map of {store}", said, "\n".join(parts), folder / "map.css", kind="actstore map")


def _data(about: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Iterator[str]:
    """The arrays one after the other, each at a multiple of 8 bytes, and what and where they are, as JSON."""
    body, fields = bytearray(), {}
    for name, values in arrays.items():
        plain = np.ascontiguousarray(values)
        fields[name] = {"type": plain.dtype.name, "start": len(body), "length": plain.size}
        body += plain.astype(plain.dtype.newbyteorder("<")).tobytes()
        body += bytes(-len(body) % 8)
    yield _element("application/json", "about", json.dumps({**about, "arrays": fields}).replace("<", "\\u003c"))
    yield _element("text/plain", "data", _base64(gzip.compress(bytes(body), 6, mtime=0)))


def _element(kind: str, name: str, text: str) -> str:
    return f'<script type="{escape(kind)}" id="{escape(name)}">{text}</script>'


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _neighbours(made: Map, order: NDArray[np.int64]) -> NDArray[np.uint32]:
    """(n, at most 5) places on the page."""
    page_place = np.append(np.argsort(order), _NOBODY)  # of -1, too
    return page_place[made.neighbours[order][:, :_SHOWN_NEIGHBOURS]].astype(np.uint32)


def _ids(made: Map, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Bytes of all ids and where each begins; nothing where rows have none."""
    if not isinstance(made.split.ids, Texts):
        return {}
    ids = made.split.ids.take(rows)
    return {"idOffsets": ids.offsets.astype(np.uint32), "idBytes": ids.data}


def _values(scale: Categories | Numbers) -> NDArray[Any]:
    if isinstance(scale, Categories):
        kind = np.uint8 if len(scale.names) < 256 else np.uint16 if len(scale.names) < 65_536 else np.uint32
        return np.where(scale.codes < 0, len(scale.names), scale.codes).astype(kind)
    narrow = scale.values.astype(np.float32)
    is_exact = scale.kind == "float" or np.array_equal(narrow.astype(np.float64), scale.values, equal_nan=True)
    return narrow if is_exact else scale.values


def _describe(scale: Categories | Numbers) -> dict[str, Any]:
    if isinstance(scale, Categories):
        light, dark = ([pair[ground] for pair in scale.colours] for ground in (0, 1))
        return {"name": scale.name, "kind": "category", "names": scale.names, "light": light, "dark": dark}
    present = scale.values[np.isfinite(scale.values)]
    low, high = (float(present.min()), float(present.max())) if len(present) else (0.0, 0.0)
    return {"name": scale.name, "kind": scale.kind, "low": low, "high": high}
