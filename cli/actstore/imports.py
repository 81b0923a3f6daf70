"""`actstore import` and `actstore append`: rows from array files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from actstore.progress import SplitBars
from cli.group import describe_rows, emit, example, human_bytes, json_option, warn_of_classes
from cli.options import PATH
from cli.row_options import file_options, layout_options, trained_on_option
from cli.stores import STORE, Place

ARRAY = click.argument("array_file", metavar="ARRAY", type=PATH)


@click.command(
    "import",
    epilog=example(
        "actstore import features.npy imagenet.zarr --labels labels.npy --classes names.txt",
        "actstore import activations.npz mini.zarr      # every K with a K_labels becomes a split",
        "actstore import features.h5 x.zarr --array pool5 --split val",
        "actstore import activations.npz mini.zarr --trained-on split.json",
        "actstore import table.csv x.zarr --column area --column source",
        "actstore import features.npy x.zarr --columns facts.csv       # area,source,date: a line per row",
    ),
)
@ARRAY
@click.argument("store", required=False, type=STORE)
@file_options
@layout_options(None)
@trained_on_option
@json_option
def import_(array_file: Path, store: Place | None, restart: bool, trained_on: list[str] | None, **request: Any) -> None:
    """Make STORE from ARRAY (.npy .npz .h5 .parquet .csv .safetensors .pt), never loading it whole.

    Tables may have a column of lists, or a column per feature. Rows keep their type: fp16 as f2, anything else as f4;
    `--dtype f2` halves fp32. STORE defaults to the name of ARRAY with .zarr. Interrupted, the same command resumes.
    """
    from actstore.tables import ImportRequest, Rounding, import_file

    target = store or Path(f"{array_file.stem}.zarr")
    layout = {key: request.pop(key) for key in ("dtype", "chunk_rows", "codec", "shard_inner_rows")}
    begin, rounding = time.perf_counter(), Rounding()
    with SplitBars("import", shown=True) as bars:
        made = import_file(ImportRequest(array_file, **request), target, bars, restart, rounding, **layout)
    if trained_on is not None:
        made.add_provenance(trained_classes=list(trained_on))
    seconds = time.perf_counter() - begin
    rows = {name: split.rows for name, split in made.splits.items()}
    size = sum(rows.values()) * made.spec.row_bytes
    unlabelled, lacking = made.unlabelled_rows(), made.classes_train_lacks()
    warn_of_classes(lacking)
    some = [f"{count:,} of {name}" for name, count in unlabelled.items() if 0 < count < rows[name]]
    without = f"; without a label: {', '.join(some)}" if some else ""
    result = {
        "store": str(target), "rows": rows, "dim": made.dim, "classes": len(made.classes), "dtype": made.spec.dtype,
        "rounding": rounding.largest, "unlabelled": unlabelled, "classes_train_lacks": lacking, "seconds": seconds,
    }  # fmt: skip
    emit(result, f"{target}: {describe_rows(rows)}, dim {made.dim}, {len(made.classes)} classes, {made.spec.dtype}, "
         f"{human_bytes(size)} in {seconds:.1f} s{_rounded(rounding.largest, made.spec.dtype)}"
         f"{without}")  # fmt: skip


@click.command(epilog=example("actstore append more.npy imagenet.zarr --labels more_labels.txt --split train"))
@ARRAY
@click.argument("store", type=STORE)
@file_options
@click.option("--again", is_flag=True, help="Add the rows though a file with the same content was added before.")
@json_option
def append(array_file: Path, store: Place, restart: bool, again: bool, **request: Any) -> None:
    """Add the rows of ARRAY to a finished split; labels that are new names become new classes.

    Readers see the old rows until the new ones are all there. A file whose content was added before, under whatever
    name, adds nothing.
    """
    from actstore.tables import ImportRequest, Rounding, append_file

    rounding = Rounding()
    with SplitBars("append", shown=True) as bars:
        added = append_file(ImportRequest(array_file, **request), store, bars, restart, rounding, again)
    text = f"{store}: these rows are there already, nothing added (--again adds them once more)"
    if added:
        text = f"{store}: {added:,} rows added{_rounded(rounding.largest, 'the type of the store')}"
    emit({"store": str(store), "rows_added": added, "rounding": rounding.largest}, text)


def _rounded(largest: float | None, dtype: str) -> str:
    """What the type on disk cost, where it could cost anything."""
    if largest is None:
        return ""
    if largest == 0:
        return f"; {dtype} holds every value exactly"
    return f"; rounding to {dtype} moved no value by more than {largest:.2g} of the largest in its row"
