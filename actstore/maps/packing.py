"""A map as one HTML page: typed arrays for its script, compressed, in base64; images of rows in sheets that the page
shows parts of, as many as a page should hold; and what points can be coloured by: classes and columns, as codes or as
numbers, in colours that differ."""

from __future__ import annotations

import base64
import gzip
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from actstore.errors import ActstoreError, MissingColumnError
from actstore.images.opening import SplitImages, html_page, image_sources, jpeg_bytes
from actstore.layout.columns import Column, Texts
from actstore.split import Split
from actstore.streams.sampling import Stream, generator

if TYPE_CHECKING:
    from actstore.maps.making import Map

DEFAULT_THUMBNAILS = 10_000
SIDE = 64  # pixels
ACROSS = 12  # thumbnails of a sheet, and as many down
_TRIED = 50  # images; if none of the first can be read, none will
_SHOWN_NEIGHBOURS = 5
_NO_POINT = 0xFFFFFFFF  # stands for no neighbour
SCRIPTS = ("data.js", "drawing.js", "finding.js", "labels.js", "panel.js", "input.js", "main.js")


def make_page(
    made: Map,
    color: str | None = None,
    thumbnails: int = DEFAULT_THUMBNAILS,
    images: str | Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[str, list[str]]:
    """And all notes. See `Map.to_html`."""
    order = generator(made.seed, 1, Stream.MAPPED_ROWS).permutation(len(made))  # so that no class covers those before
    rows, positions = made.rows[order], made.positions[order]
    scales, notes = scales_of(made.split, rows, positions, color)
    drawn = generator(made.seed, 2, Stream.MAPPED_ROWS).permutation(len(made))[: max(0, thumbnails)]
    folder = None if images is None else Path(images)
    pictured, sheets, note = make_thumbnails(made.split, rows, np.sort(drawn), folder, progress)
    if note is None and pictured and len(drawn) < len(made):
        note = f"thumbnails of {len(pictured):,} of {len(made):,} rows"
    notes += [] if note is None else [note]
    arrays: dict[str, NDArray[Any]] = {
        "places": scaled(positions), "rows": rows.astype(np.uint32), "neighbours": _neighbours(made, order),
        "pictured": np.array(pictured, np.uint32), **_ids(made, rows),
        **{f"scale{number}": scale.values_on_page() for number, scale in enumerate(scales)},
    }  # fmt: skip
    notes = [*made.notes, *notes]
    about = {
        "points": len(made), "side": SIDE, "across": ACROSS, "split": made.split.name, "method": made.method,
        "notes": notes, "scales": [scale.describe() for scale in scales],
    }  # fmt: skip
    return _page(made, about, arrays, sheets), notes


def _page(made: Map, about: dict[str, Any], arrays: dict[str, NDArray[Any]], sheets: list[bytes]) -> str:
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
    page_place = np.append(np.argsort(order), _NO_POINT)  # of -1, too
    return page_place[made.neighbours[order][:, :_SHOWN_NEIGHBOURS]].astype(np.uint32)


def _ids(made: Map, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Bytes of all ids and where each begins; nothing where rows have none."""
    if not isinstance(made.split.ids, Texts):
        return {}
    ids = made.split.ids.take(rows)
    return {"idOffsets": ids.offsets.astype(np.uint32), "idBytes": ids.data}


def scaled(positions: NDArray[np.float32]) -> NDArray[np.uint16]:
    """(n, 2) in steps of 1/65,535 of the longer side of the map, which is centred; both sides have one scale."""
    low, high = positions.min(0), positions.max(0)
    side = float((high - low).max()) or 1.0
    steps: NDArray[np.uint16] = np.rint(((positions - (low + high) / 2) / side + 0.5) * 65_535).astype(np.uint16)
    return steps


def make_thumbnails(
    split: Split,
    rows: NDArray[np.int64],
    points: NDArray[np.int64],
    folder: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[int], list[bytes], str | None]:
    """Of some points of a map, whose rows (n,) are these: those that have one, in the order in which sheets hold them,
    these sheets as JPEG, and why some have none. folder: where ids are paths; None: the images that the split was built
    from."""
    if not len(points) or (folder is None and not image_sources(split)):
        return [], [], None
    images = SplitImages(split, folder)

    def load(point: int) -> Image.Image | None:
        try:
            return images.thumbnail(int(rows[point]), SIDE)
        except (ActstoreError, OSError):
            return None

    found: list[int] = []
    sheets: list[bytes] = []
    pending: list[Image.Image] = []
    load(int(points[0]))  # lists the images once, not in every thread
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(points), _TRIED):
            part = points[start : start + _TRIED].tolist()
            for point, image in zip(part, pool.map(load, part), strict=True):
                if image is not None:
                    found.append(point)
                    pending.append(image)
                if len(pending) == ACROSS**2:
                    sheets.append(_sheet(pending))
                    pending = []
            if progress is not None:
                progress(len(part))
            if not found:
                where = folder or "what the split was built from"
                said = f"no thumbnails: none of {len(part)} images could be read in {where}"
                return [], [], said
    sheets += [_sheet(pending)] if pending else []
    lacking = len(points) - len(found)
    note = f"{lacking:,} images could not be read and have no thumbnail" if lacking else None
    return found, sheets, note


def _sheet(images: list[Image.Image]) -> bytes:
    down = -(-len(images) // ACROSS)
    sheet = Image.new("RGB", (ACROSS * SIDE, down * SIDE))
    for place, image in enumerate(images):
        sheet.paste(image, (place % ACROSS * SIDE, place // ACROSS * SIDE))
    return jpeg_bytes(sheet)


CLASS = "class"
NONE, OTHER = "(none)", "(other)"
MOST_CATEGORIES = 255  # of a column of texts; what is rarer is one more
MOST_COLUMNS = 16
_MOST_COLOURS = 120  # that can be told apart, at best


@dataclass(frozen=True)
class Categories:
    """codes (n,) into names; -1 where there is none. colours: (names, 2) as #rrggbb, on light and on dark ground."""

    name: str
    codes: NDArray[np.int64]
    names: tuple[str, ...]
    colours: tuple[tuple[str, str], ...]

    def values_on_page(self) -> NDArray[Any]:
        kind = np.uint8 if len(self.names) < 256 else np.uint16 if len(self.names) < 65_536 else np.uint32
        return np.where(self.codes < 0, len(self.names), self.codes).astype(kind)

    def describe(self) -> dict[str, Any]:
        light, dark = ([pair[ground] for pair in self.colours] for ground in (0, 1))
        return {"name": self.name, "kind": "category", "names": self.names, "light": light, "dark": dark}


@dataclass(frozen=True)
class Numbers:
    """values (n,), NaN where there is none; of dates milliseconds since 1970."""

    name: str
    values: NDArray[np.float64]
    kind: str  # int, float or date

    def values_on_page(self) -> NDArray[Any]:
        narrow = self.values.astype(np.float32)
        is_exact = self.kind == "float" or np.array_equal(narrow.astype(np.float64), self.values, equal_nan=True)
        return narrow if is_exact else self.values

    def describe(self) -> dict[str, Any]:
        present = self.values[np.isfinite(self.values)]
        low, high = (float(present.min()), float(present.max())) if len(present) else (0.0, 0.0)
        return {"name": self.name, "kind": self.kind, "low": low, "high": high}


def require_scale(split: Split, name: str | None) -> None:
    """Refuses what points cannot be coloured by; None stands for whatever comes first."""
    if name not in (None, CLASS, *split.columns):
        have = ", ".join([CLASS, *split.columns])
        raise MissingColumnError(f"split {split.name!r} has no column {name!r} to colour by; it has: {have}")


def scales_of(
    split: Split, rows: NDArray[np.int64], positions: NDArray[np.float32], first: str | None = None
) -> tuple[list[Categories | Numbers], list[str]]:
    """By class, and by each column; `first` before the others. And notes on columns that are left out."""
    columns = list(split.columns)
    require_scale(split, first)
    names = sorted([CLASS, *columns], key=lambda name: name != first)
    labels = split.labels[rows].astype(np.int64)
    notes: list[str] = []
    scales: list[Categories | Numbers] = []
    for name in names[:MOST_COLUMNS]:
        if name == CLASS:
            if (labels >= 0).any() or not columns:
                scales.append(_of_codes(name, labels, split.classes, positions))
            continue
        column = split.columns.stored(name).take(rows)
        scale = _of_column(name, column, positions)
        scales += [] if scale is None else [scale]
        if scale is None:
            notes.append(f"column {name} is left out of the page, as most rows have a text of their own there")
    if len(names) > MOST_COLUMNS:
        notes.append(f"columns after the first {MOST_COLUMNS - 1} are left out of the page")
    return scales or [_of_codes(CLASS, labels, split.classes, positions)], notes


def _of_column(name: str, column: Column, positions: NDArray[np.float32]) -> Categories | Numbers | None:
    if isinstance(column.stored, Texts):
        texts, counts = np.unique(np.array([*column.stored, ""], object)[:-1].astype(str), return_counts=True)
        if len(texts) > 20 and 2 * len(texts) > len(column):
            return None
        kept = texts[np.argsort(-counts, kind="stable")][:MOST_CATEGORIES]
        kept = np.sort(kept[kept != ""])
        names = [*kept.tolist(), *([OTHER] if len(texts) - ("" in texts) > len(kept) else [])]
        places = {text: code for code, text in enumerate(names)}
        rare = places.get(OTHER, -1)
        codes = np.array([-1 if not text else places.get(text, rare) for text in column.stored], np.int64)
        return _of_codes(name, codes, names, positions)
    if column.kind == "bool":
        return _of_codes(name, column.stored.astype(np.int64), ["false", "true"], positions)
    values = column.stored.astype(np.float64)
    values[column.missing()] = np.nan
    return Numbers(name, values / 1000 if column.kind == "date" else values, column.kind)


def _of_codes(name: str, codes: NDArray[np.int64], names: Any, positions: NDArray[np.float32]) -> Categories:
    """Of the categories that occur, in their order."""
    found = np.unique(codes[codes >= 0])
    places = np.full(len(names) + 1, -1)
    places[found] = np.arange(len(found))
    compact = places[codes]
    kept = tuple(names[code] for code in found.tolist())
    return Categories(name, compact, kept, choose_colours(compact, len(kept), positions))


def choose_colours(codes: NDArray[np.int64], count: int, positions: NDArray[np.float32]) -> tuple[tuple[str, str], ...]:
    """A colour for each category, so that those near each other on the map differ most; the largest choose first."""
    if not count:
        return ()
    side = float(np.ptp(positions, axis=0).max()) or 1.0
    sizes = np.bincount(codes[codes >= 0], minlength=count)
    sums = [np.bincount(codes[codes >= 0], positions[codes >= 0, axis], count) for axis in (0, 1)]
    middles = np.stack(sums, axis=1) / np.maximum(sizes, 1)[:, None] / side
    labs, texts = _palette(max(8, min(count, _MOST_COLOURS)))
    uses, taken = np.zeros(len(labs)), np.full(count, -1)
    for category in np.argsort(-sizes, kind="stable").tolist():
        before = np.flatnonzero(taken >= 0)
        apart = np.linalg.norm(middles[before] - middles[category], axis=1)
        unlike = np.linalg.norm(labs[:, None] - labs[taken[before]][None], axis=2)  # (colours, before)
        worst = (unlike * (0.15 + apart)).min(1, initial=9.0)
        taken[category] = np.argmax(np.where(uses == uses.min(), worst, -1.0))
        uses[taken[category]] += 1
    return tuple(texts[colour] for colour in taken.tolist())


@cache
def _palette(count: int) -> tuple[NDArray[np.float64], tuple[tuple[str, str], ...]]:
    """(count, 3) in OKLab, and as text for light and for dark ground: each as far as can be from those before it."""
    candidates = []
    for step in range(5):
        for chroma in (0.06, 0.1, 0.14, 0.18, 0.22):
            for hue in range(0, 360, 8):
                pair = [_oklab(lightness, chroma, hue) for lightness in (0.43 + 0.08 * step, 0.57 + 0.08 * step)]
                rgbs = [_to_rgb(lab) for lab in pair]
                if all(((rgb > -0.002) & (rgb < 1.002)).all() for rgb in rgbs):
                    candidates.append((pair[0], tuple(_as_text(rgb) for rgb in rgbs)))
    labs = np.array([lab for lab, _ in candidates])
    chosen = [int(np.argmin(np.linalg.norm(labs - _oklab(0.59, 0.17, 256), axis=1)))]
    nearest = np.linalg.norm(labs - labs[chosen[0]], axis=1)
    while len(chosen) < count:
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, np.linalg.norm(labs - labs[chosen[-1]], axis=1))
    texts = tuple((candidates[place][1][0], candidates[place][1][1]) for place in chosen)
    return labs[chosen], texts


def _oklab(lightness: float, chroma: float, hue: float) -> NDArray[np.float64]:
    angle = np.deg2rad(hue)
    return np.array([lightness, chroma * np.cos(angle), chroma * np.sin(angle)])


# OKLab (B. Ottosson 2020) to linear sRGB
_TO_LMS = np.array([[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728],
                    [1, -0.0894841775, -1.2914855480]])  # fmt: skip
_TO_RGB = np.array([[4.0767416621, -3.3077115913, 0.2309699292], [-1.2684380046, 2.6097574011, -0.3413193965],
                    [-0.0041960863, -0.7034186147, 1.7076147010]])  # fmt: skip


def _to_rgb(lab: NDArray[np.float64]) -> NDArray[np.float64]:
    linear = _TO_RGB @ (_TO_LMS @ lab) ** 3
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * np.maximum(linear, 1e-9) ** (1 / 2.4) - 0.055)


def _as_text(rgb: NDArray[np.float64]) -> str:
    return "#" + "".join(f"{round(float(part) * 255):02x}" for part in rgb.clip(0, 1))
