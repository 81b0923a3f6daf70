"""`actstore info`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cli.group import emit, example, human_bytes, json_option, table
from cli.options import ActivationStore, Place, store_argument

if TYPE_CHECKING:
    from actstore.spec import SplitSpec


@click.command(epilog=example("actstore info imagenet.zarr", "actstore info imagenet.zarr --classes --json"))
@store_argument
@click.option("--classes", "list_classes", is_flag=True, help="List every class with its number of rows.")
@click.option("--skipped", "list_skipped", is_flag=True, help="List the files that a build left out, and why.")
@json_option
def info(store: Place, list_classes: bool, list_skipped: bool) -> None:
    """Show size, classes, provenance, chunk layout, codec and completeness of STORE."""
    import actstore

    opened = actstore.open(store)
    facts = describe(opened)
    if list_classes:
        facts["class_rows"] = {
            name: dict(zip(opened.classes, opened[name].class_index.counts.tolist(), strict=True))
            for name, split in opened.splits.items()
            if split.complete
        }
    emit(facts, _text(facts, list_skipped))


def describe(store: ActivationStore) -> dict[str, Any]:
    from actstore.layout.metadata import read_attributes
    from actstore.spec import CONVENTIONS

    spec = store.spec
    layout = {"chunk_rows": spec.chunk_rows, "chunk_bytes": spec.chunk_bytes, "codec": spec.codec}
    if spec.shard_inner_rows:
        layout["shard_inner_rows"] = spec.shard_inner_rows
    return {
        "store": str(store.path),
        "dim": spec.dim,
        "dtype": spec.dtype,
        "classes": len(spec.classes),
        "layout": layout,
        "splits": [_describe_split(store, name, split) for name, split in store.splits.items()],
        "provenance": dict(spec.provenance),
        "conventions": read_attributes(store.path).get(CONVENTIONS, []),
    }


def _describe_split(store: ActivationStore, name: str, split: SplitSpec) -> dict[str, Any]:
    from actstore.reading.mapped_rows import can_map

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
        "columns": _columns(store, name) if split.complete else [],
    }


def _columns(store: ActivationStore, split: str) -> list[dict[str, Any]]:
    """Name, type, how many rows lack it, and its range or how many values it has."""
    from actstore.errors import DamagedError
    from actstore.layout.columns import summary

    opened, columns = store[split], []
    for name, spec in opened.columns.specs.items():
        try:
            columns.append({"name": name, **summary(opened.columns.stored(name))})
        except DamagedError as error:  # what is sound is shown all the same
            columns.append({"name": name, "type": spec.kind, "damaged": str(error)})
    return columns


_PRECISION = {"f2": "fp16", "f4": "fp32"}


def _text(facts: dict[str, Any], list_skipped: bool) -> str:
    layout = facts["layout"]
    shards = f", shards of {layout['shard_inner_rows']}-row chunks" if "shard_inner_rows" in layout else ""
    lines = [
        f"{facts['store']}: dim {facts['dim']}, {_PRECISION[facts['dtype']]}, {facts['classes']} classes",
        f"chunks of {layout['chunk_rows']} rows ({human_bytes(layout['chunk_bytes'])}), "
        f"codec {layout['codec']} + crc32c{shards}",
        "",
        table(
            ["split", "rows", "dim", "size", "chunks", "complete", "memory-mapped", "ids", "means"],
            [
                [
                    split["split"], split["rows"], split["dim"], human_bytes(split["bytes"]), split["chunks"],
                    *("yes" if split[key] else "no" for key in ("complete", "mapped", "ids", "means")),
                ]
                for split in facts["splits"]
            ],
        ),
    ]  # fmt: skip
    lines += [f"{key}: {_brief(value)}" for key, value in facts["provenance"].items() if value is not None]
    if facts["conventions"]:
        named = (f"{each.get('name', 'unnamed')} ({each.get('uuid', 'no uuid')})" for each in facts["conventions"])
        lines.append(f"Zarr conventions: {', '.join(named)}")
    for split in facts["splits"]:
        if split["unfinished_rows"]:
            lines.append(
                f"{split['split']}: {split['unfinished_rows']:,} rows of an unfinished build are kept; repeat its "
                "command to go on"
            )
        skipped = [file for source in split["sources"] for file in source.get("skipped", [])]
        if skipped:
            lines.append(f"{split['split']}: {len(skipped)} files skipped" + ("" if list_skipped else " (--skipped)"))
        if list_skipped:
            lines += [f"  {name}: {reason}" for name, reason in skipped]
    for split in facts["splits"]:
        if split["columns"]:
            header = ["column", "type", f"values in {split['split']}", "missing"]
            lines += ["", table(header, [_column_line(column) for column in split["columns"]])]
    for split, counts in facts.get("class_rows", {}).items():
        lines += ["", table(["class", f"rows in {split}"], [[name, count] for name, count in counts.items()])]
    return "\n".join(lines)


def _column_line(column: dict[str, Any]) -> list[Any]:
    if "damaged" in column:
        return [column["name"], column["type"], column["damaged"], ""]
    if "distinct" in column:
        more = "more than " if column["distinct_is_more"] else ""
        values = f"{more}{column['distinct']:,} distinct"
    else:
        ends = [column[key] for key in ("smallest", "largest")]
        shown = [f"{end:.6g}" if isinstance(end, float) else str(end) for end in ends]
        values = "none" if ends[0] is None else " to ".join(shown)
    return [column["name"], column["type"], values, column["missing"]]


def _brief(value: Any) -> str:
    """A long list by its ends; --json has all of it."""
    if isinstance(value, list) and len(value) > 6:
        return f"{len(value)}: {', '.join(map(str, value[:3]))} … {value[-1]}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
