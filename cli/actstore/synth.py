"""`actstore synth`."""

from __future__ import annotations

import time
from typing import Any

import click

from cli.group import emit, example, human_bytes, json_option
from cli.options import restart_option, seed_option
from cli.progress import SplitBars
from cli.row_options import layout_options
from cli.stores import STORE, Place


@click.command(epilog=example("actstore synth big.zarr --rows 1200000 --dim 2048 --classes 1000"))
@click.argument("store", type=STORE)
@click.option("--rows", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--dim", type=click.IntRange(1), default=2048, show_default=True)
@click.option("--classes", type=click.IntRange(1), default=1000, show_default=True)
@seed_option
@click.option("--shuffled", is_flag=True, help="Labels in random order, not class after class.")
@click.option("--split", default="train", show_default=True)
@restart_option
@layout_options()
@json_option
def synth(
    store: Place, rows: int, dim: int, classes: int, seed: int, shuffled: bool, split: str, restart: bool,
    **layout: Any,
) -> None:  # fmt: skip
    """Generate STORE: rows with the class structure, sparsity and spectrum of real ResNet-50 activations.

    Deterministic by seed, made block by block; interrupted, the same command resumes.
    """
    import actstore

    begin = time.perf_counter()
    with SplitBars("synth") as bars:
        made = actstore.synthesize(store, rows, dim, classes, seed=seed, shuffled=shuffled, split=split,
                                   restart=restart, progress=bars, **layout)  # fmt: skip
    seconds, size = time.perf_counter() - begin, human_bytes(rows * made.spec.row_bytes)
    emit({"store": str(store), "split": split, "rows": rows, "dim": dim, "classes": classes, "seconds": seconds},
         f"{store} {split}: {rows:,} x {dim}, {classes} classes, {size} in {seconds:.1f} s")  # fmt: skip
