"""A split by its path (`a.zarr/train`), which rows of several splits are of the same image, and a key that names the
rows of a split in caches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError, MissingSplitError, NotAStoreError
from actstore.layout.columns import Texts
from actstore.layout.metadata import read_attributes
from actstore.spec import KEY
from actstore.split import Split
from actstore.storage.place import AnyPlace, Place, parse_place
from actstore.store import ActivationStore, open


def open_representation(what: Split | AnyPlace) -> Split:
    """The split itself, or that of a path; of a store alone its only split, or train."""
    if isinstance(what, Split):
        return what
    store, name = store_and_split(parse_place(what))
    return default_split(open(store)) if name is None else open(store)[name]


def store_and_split(place: Place) -> tuple[Place, str | None]:
    """`a.zarr/train` as a.zarr and train, its split; of a store alone no split."""
    with suppress(NotAStoreError):  # whoever opens it is told
        about = read_attributes(place).get(KEY)
        if isinstance(about, dict) and "rows" in about:
            return place.parent, place.name
    return place, None


def default_split(store: ActivationStore) -> Split:
    names = list(store.splits)
    if len(names) == 1 or "train" in names:
        return store[names[0] if len(names) == 1 else "train"]
    have = ", ".join(names) or "none yet"
    raise MissingSplitError(
        f"{store.path} needs a split, such as {store.path}/{(names or ['train'])[0]}; it has: {have}"
    )


@dataclass(frozen=True)
class Alignment:
    """rows: of each split (n,), so that row rows[i][j] of split i has the same id for every i.

    notes: whole sentences on what was left out, and why.
    """

    rows: tuple[NDArray[np.int64], ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows[0])


def align(splits: Sequence[Split], names: Sequence[str]) -> Alignment:
    """In the order of the first split. names: what the splits are called in notes and errors."""
    with_ids = [split.committed.has_ids for split in splits]
    if not any(with_ids):
        return _align_by_number(splits, names)
    if not all(with_ids):
        without = names[with_ids.index(False)]
        raise InvalidInputError(
            f"rows are aligned by id, but the rows of {without} have no ids; write them with the ids of the others"
        )
    ids: list[Texts] = [split.ids for split in splits]  # type: ignore[misc]  # as they all have some
    if all(_are_equal(ids[0], other) for other in ids[1:]):
        everything = np.arange(len(splits[0]))
        return Alignment((everything,) * len(splits))
    rows = _common_rows(ids, names)
    notes = [
        f"{name}: {len(split) - len(rows[0]):,} of {len(split):,} rows are left out, because another split has no row "
        "of their id, or several"
        for name, split in zip(names, splits, strict=True)
        if len(split) > len(rows[0])
    ]
    return Alignment(rows, tuple(notes))


def _align_by_number(splits: Sequence[Split], names: Sequence[str]) -> Alignment:
    counts = {name: len(split) for name, split in zip(names, splits, strict=True)}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        raise InvalidInputError(f"without ids, splits must have equally many rows, got {listed}; write them with ids")
    return Alignment(
        (np.arange(len(splits[0])),) * len(splits),
        ("rows have no ids: row i of one is compared with row i of another",),
    )


def _are_equal(one: Texts, other: Texts) -> bool:
    return np.array_equal(one.offsets, other.offsets) and np.array_equal(one.data, other.data)


def _common_rows(ids: Sequence[Texts], names: Sequence[str]) -> tuple[NDArray[np.int64], ...]:
    """Of each split the rows whose id all have, once."""
    import pyarrow.compute

    from actstore.reading.adapters import arrow_texts

    arrays = [arrow_texts(texts) for texts in ids]
    found_at = (pyarrow.compute.index_in(arrays[0], value_set=array) for array in arrays[1:])
    places = [np.arange(len(arrays[0])), *(at.fill_null(-1).to_numpy().astype(np.int64) for at in found_at)]
    common: NDArray[np.bool_] = np.all([found >= 0 for found in places], axis=0)
    for array in arrays:
        counts = array.value_counts()
        if len(counts) < len(array):
            repeated = counts.field("values").filter(pyarrow.compute.greater(counts.field("counts"), 1))
            common &= ~pyarrow.compute.is_in(arrays[0], value_set=repeated).to_numpy(zero_copy_only=False)
    if not common.any():
        examples = "; ".join(f"{name} has {texts[0]!r}" for name, texts in zip(names, ids, strict=True) if len(texts))
        raise InvalidInputError(f"no id occurs in all of the splits, so no row can be compared: {examples}")
    return tuple(found[common] for found in places)


def aligned_blocks(splits: Sequence[Split], alignment: Alignment, step: int) -> Iterator[list[NDArray[Any]]]:
    """The aligned rows in order, at most `step` at a time: one block (n, dim) of each split."""
    for start in range(0, len(alignment), step):
        yield [_read(split, rows[start : start + step]) for split, rows in zip(splits, alignment.rows, strict=True)]
        for split, rows in zip(splits, alignment.rows, strict=True):
            part = rows[start : start + step]
            split.rows.release(int(part.min()), int(part.max()) + 1)


def _read(split: Split, rows: NDArray[np.int64]) -> NDArray[Any]:
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows) and bool((np.diff(rows) == 1).all()):
        return split.rows.read(first, last + 1)
    return split.rows.take(rows)


_VERSION = 1


def fingerprint(model: Any, transform: Any = None, source: Any = None) -> str:
    """Name a network, what is done to images before it, and where they come from, by one hash.

    Each argument may be text, numbers, lists, dictionaries, dataclasses, arrays, a module or tensor of torch (all
    weights count), a Path (the content of a file, or of all files of a folder) or a split (its content). Anything else
    counts by its repr.

    Args:
        model: the network.
        transform: what is done to images before they reach it.
        source: where the images come from.

    Returns:
        `sha256:…`, the same in every process.

    Raises:
        InvalidInputError: a repr names an address in memory, which is another one in every process.

    Examples:
        >>> actstore.fingerprint("resnet50", {"crop": 224}) == actstore.fingerprint("resnet50", {"crop": 192})
        False
    """
    parts = {"model": model, "transform": transform, "source": source}
    described = [_VERSION, *(_describe(part, name) for name, part in parts.items())]
    return "sha256:" + hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _describe(value: Any, where: str) -> Any:
    """As JSON, every kind marked so that no two kinds of value look alike."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.generic):
        return {"number": repr(value.item() if isinstance(value, np.generic) else value)}
    if isinstance(value, bytes):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, Split):
        return {"split": value.content}
    if isinstance(value, np.ndarray):
        data = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()
        return {"array": [value.dtype.str, list(value.shape), data]}
    if isinstance(value, Mapping):
        pairs = [[_describe(key, where), _describe(part, f"{where}[{key!r}]")] for key, part in value.items()]
        return {"mapping": sorted(pairs, key=lambda pair: json.dumps(pair[0], sort_keys=True))}
    if isinstance(value, Sequence):
        return {"list": [_describe(part, f"{where}[{number}]") for number, part in enumerate(value)]}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: _describe(getattr(value, each.name), f"{where}.{each.name}") for each in fields(value)}
        return {"dataclass": [type(value).__qualname__, parts]}
    if hasattr(value, "__fspath__"):
        return {"files": _files(Path(value), where)}
    if hasattr(value, "state_dict") and hasattr(value, "named_modules"):
        weights = {name: _describe(tensor, f"{where}.{name}") for name, tensor in value.state_dict().items()}
        return {"module": [_stable_repr(value, where), weights]}
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        import torch

        plain = value.detach().cpu().contiguous()
        data = hashlib.sha256(plain.flatten().view(torch.uint8).numpy().data).hexdigest()
        return {"tensor": [str(plain.dtype), list(plain.shape), data]}
    return {"object": _stable_repr(value, where)}


def _stable_repr(value: Any, where: str) -> str:
    text = repr(value)
    if " at 0x" in text:
        raise InvalidInputError(
            f"{where} is {text}, whose address is another one in every process; give its settings, such as a dict"
        )
    return text


def _files(path: Path, where: str) -> list[list[str]]:
    """Name and sha256 of a file, or of every file below a folder."""
    if not path.exists():
        raise InvalidInputError(f"{where} is {path}, which does not exist")
    named = []
    for file in sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        named.append([file.relative_to(path).as_posix() if path.is_dir() else "", digest])
    return named
