"""What labels must be before a store takes them, and why a row is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actstore.errors import InvalidInputError

FP16_MAX, FP32_MAX = 65504.0, float(np.finfo(np.float32).max)


def parse_labels(labels: ArrayLike | None, count: int, label_of: Mapping[str, int], position: int) -> NDArray[np.int32]:
    """(count,) labels from numbers or class names; none at all means unlabelled."""
    if labels is None:
        return np.full(count, -1, np.int32)
    plain = plain_labels(np.asarray(labels))
    if plain.shape != (count,):
        raise InvalidInputError(f"expected {count} labels, one per row, got shape {plain.shape}")
    if plain.dtype.kind in "UO":
        label_of = {**label_of, "": -1}
        unknown = [name for name in plain.tolist() if name not in label_of]
        if unknown:
            raise InvalidInputError(f"label {unknown[0]!r} is not a class of this store; add it with add_classes first")
        return np.array([label_of[name] for name in plain.tolist()], np.int32)
    if count and plain.dtype.kind not in "iu":
        raise InvalidInputError(f"labels must be whole numbers or class names, got type {plain.dtype}")
    outside = (plain < -1) | (plain >= len(label_of))
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        raise InvalidInputError(
            f"row {position + row} has label {plain[row]}; this store has {len(label_of)} classes, "
            f"so labels are below {len(label_of)}, or -1 for none"
        )
    return plain.astype(np.int32)


def plain_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Labels as numbers or text, whatever they came as: bytes, objects, or numbers in an object array."""
    if labels.dtype.kind == "O":
        listed = [-1 if label is None else label for label in labels.tolist()]  # no label in a table is unlabelled
        if all(isinstance(label, int | np.integer) for label in listed):
            return np.array(listed, np.int64)
        return np.array(["" if label == -1 else str(label) for label in listed], dtype=object)
    if labels.dtype.kind == "S":
        return np.char.decode(labels, "utf-8")
    return labels


def refused_row(row: NDArray[Any], where: str, dtype: str) -> InvalidInputError:
    """Why a row cannot be stored: not finite, or finite but beyond fp16."""
    wide = np.asarray(row, np.float64)
    if np.isfinite(wide).all():
        worst = wide[np.argmax(np.abs(wide))]
        if dtype == "f4":
            return InvalidInputError(f"{where} holds {worst:g}, beyond the {FP32_MAX:g} of fp32; scale the activations")
        return InvalidInputError(f"{where} holds {worst:g}, beyond fp16's {FP16_MAX:g}; use dtype f4")
    feature = int(np.flatnonzero(~np.isfinite(wide))[0])
    return InvalidInputError(f"{where} holds {wide[feature]} at feature {feature}; activations must be finite")
