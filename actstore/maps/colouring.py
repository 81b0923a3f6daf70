"""What points can be coloured by: classes and columns, as codes or as numbers; and colours that differ."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import MissingColumnError
from actstore.layout.columns import Column, Texts
from actstore.split import Split

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


@dataclass(frozen=True)
class Numbers:
    """values (n,), NaN where there is none; of dates milliseconds since 1970."""

    name: str
    values: NDArray[np.float64]
    kind: str  # int, float or date


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
