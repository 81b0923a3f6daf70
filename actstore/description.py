"""What a store is, for people and notebooks: facts from its metadata alone, as a dictionary, a line and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from actstore.errors import DamagedError
from actstore.layout.columns import summary
from actstore.layout.metadata import read_attributes
from actstore.progress import human_bytes
from actstore.reading.mapped_rows import can_map
from actstore.spec import CONVENTIONS, SplitSpec, StoreSpec

if TYPE_CHECKING:
    from actstore.split import Split
    from actstore.store import ActivationStore

_TYPES = {"f2": "float16", "f4": "float32"}


def describe(store: ActivationStore, classes: bool = False) -> dict[str, Any]:
    """Size, layout, provenance and splits of a store. classes: also how many rows each class has."""
    spec = store.spec
    layout = {"chunk_rows": spec.chunk_rows, "chunk_bytes": spec.chunk_bytes, "codec": spec.codec}
    if spec.shard_inner_rows:
        layout["shard_inner_rows"] = spec.shard_inner_rows
    splits = store.splits
    facts = {
        "store": str(store.path),
        "dim": spec.dim,
        "dtype": spec.dtype,
        "classes": len(spec.classes),
        "layout": layout,
        "splits": [_describe_split(store, name, split) for name, split in splits.items()],
        "provenance": dict(spec.provenance),
        "conventions": read_attributes(store.path).get(CONVENTIONS, []),
    }
    if classes:
        complete = [name for name, split in splits.items() if split.complete]
        counts = {name: store[name].class_index.counts.tolist() for name in complete}
        facts["class_rows"] = {name: dict(zip(store.classes, counts[name], strict=True)) for name in complete}
    return facts


def _describe_split(store: ActivationStore, name: str, split: SplitSpec) -> dict[str, Any]:
    path = store.path
    spec = store.spec.of_split(split)
    chunks = -(-split.rows // spec.chunk_rows)
    return {
        "split": name,
        "rows": split.rows,
        "complete": split.complete,
        "unfinished_rows": store.unfinished_rows(name),
        "bytes": (path / name).tree_size(),
        "dim": spec.dim,
        "chunks": chunks,
        "mapped": path.local_path is not None and spec.is_raw and can_map(spec.chunk_bytes, chunks),
        "ids": split.has_ids,
        "means": (path / name / "class_mean" / "zarr.json").exists(),
        "content": split.content,
        "sources": [dict(source) for source in split.sources],
        "columns": _describe_columns(store[name]) if split.complete else [],
    }


def _describe_columns(split: Split) -> list[dict[str, Any]]:
    """Name, type, how many rows lack it, and its range or how many values it has."""
    columns = []
    for name, spec in split.columns.specs.items():
        try:
            columns.append({"name": name, **summary(split.columns.stored(name))})
        except DamagedError as error:  # what is sound is shown all the same
            columns.append({"name": name, "type": spec.kind, "damaged": str(error)})
    return columns


def brief_line(path: object, spec: StoreSpec, splits: Mapping[str, SplitSpec]) -> str:
    """A repr: of all splits of a store, or of one."""
    rows = ", ".join(f"{name}: {split.rows:,}{'' if split.complete else '+'} rows" for name, split in splits.items())
    return f"{path}: {rows or 'no rows yet'}, dim {spec.dim}, {_TYPES[spec.dtype]}, {len(spec.classes):,} classes"


def brief_table(path: object, spec: StoreSpec, splits: Mapping[str, SplitSpec]) -> str:
    """The same as a table in HTML. Sizes are those of the values, so that no folder is walked."""
    header = ("split", "rows", "dim", "type", "size", "complete")
    lines = [_cells(name, spec.of_split(split), split) for name, split in splits.items()]
    network = spec.provenance.get("backbone")
    made = f"activations of {network}" if network else "imported rows"
    caption = f"<b>{escape(str(path))}</b>: {len(spec.classes):,} classes, {escape(str(made))}"
    head = "".join(f"<th>{name}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(name: str, spec: StoreSpec, split: SplitSpec) -> Sequence[str]:
    size = human_bytes(split.rows * spec.row_bytes)
    return name, f"{split.rows:,}", f"{spec.dim:,}", _TYPES[spec.dtype], size, "yes" if split.complete else "no"
