"""`actstore info`."""

from __future__ import annotations

from typing import Any

import click

from cli.group import emit, example, human_bytes, json_option, table
from cli.stores import Place, store_argument


@click.command(epilog=example("actstore info imagenet.zarr", "actstore info imagenet.zarr --classes --json"))
@store_argument
@click.option("--classes", "list_classes", is_flag=True, help="List every class with its number of rows.")
@click.option("--skipped", "list_skipped", is_flag=True, help="List the files that a build left out, and why.")
@json_option
def info(store: Place, list_classes: bool, list_skipped: bool) -> None:
    """Show size, classes, provenance, chunk layout, codec and completeness of STORE."""
    import actstore

    facts = actstore.open(store).describe(list_classes)
    emit(facts, _text(facts, list_skipped))


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
            lines.append(
                f"{split['split']}: {counted_files(len(skipped))} skipped" + ("" if list_skipped else " (--skipped)")
            )
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


def counted_files(count: int) -> str:
    """Of what a build passed over, where a folder counts as one."""
    return "1 file or folder" if count == 1 else f"{count:,} files or folders"
