"""`actstore glyphs` and `actstore synth`: images and rows from nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from actstore.progress import SplitBars, bar
from cli.group import emit, example, human_bytes, json_option
from cli.options import FOLDER, restart_option, seed_option
from cli.row_options import layout_options
from cli.stores import STORE, Place


@click.command(
    epilog=example(
        "actstore glyphs glyphs/",
        "actstore glyphs small/ --classes 100 --per-class 20 --val-per-class 5 --seed 1",
    )
)
@click.argument("out", type=FOLDER)
@click.option("--classes", type=click.IntRange(1), default=1000, show_default=True, help="How many characters.")
@click.option("--per-class", type=click.IntRange(1), default=40, show_default=True, help="Training images of each.")
@click.option("--val-per-class", type=click.IntRange(0), default=10, show_default=True,
              help="Validation images of each.")  # fmt: skip
@seed_option
@click.option("--size", type=click.IntRange(8, 512), default=32, show_default=True, help="Side of an image in pixels.")
@click.option("--distortion", type=click.FloatRange(0, 4), default=1.0, show_default=True,
              help="How far characters are turned and moved, and how noisy they are; the demo takes 2.5.")  # fmt: skip
@json_option
def glyphs(
    out: Path, classes: int, per_class: int, val_per_class: int, seed: int, size: int, distortion: float
) -> None:
    """Draw the embedded data set into OUT/train and OUT/val: Unicode characters in 12 faces, needs no download.

    Deterministic by seed. Files that are there are kept: interrupted, the same command resumes.
    """
    from actstore.images import write_glyphs

    total, begin = classes * (per_class + val_per_class), time.perf_counter()
    with bar("glyphs", total, "images", True) as done:
        written = write_glyphs(
            out, classes, per_class, val_per_class, seed, size, progress=done.update, distortion=distortion
        )
    seconds = time.perf_counter() - begin
    train, val = classes * per_class, classes * val_per_class
    result = {
        "folder": str(out), "classes": classes, "train": train, "val": val, "written": written, "seed": seed,
        "size": size, "seconds": seconds,
    }  # fmt: skip
    emit(result, f"{out}: {train:,} train and {val:,} val images of {classes:,} classes, {size} x {size}, "
         f"{written:,} written in {seconds:.1f} s")  # fmt: skip


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
    with SplitBars("synth", shown=True) as bars:
        made = actstore.synthesize(store, rows, dim, classes, seed=seed, shuffled=shuffled, split=split,
                                   restart=restart, progress=bars, **layout)  # fmt: skip
    seconds, size = time.perf_counter() - begin, human_bytes(rows * made.spec.row_bytes)
    emit({"store": str(store), "split": split, "rows": rows, "dim": dim, "classes": classes, "seconds": seconds},
         f"{store} {split}: {rows:,} x {dim}, {classes} classes, {size} in {seconds:.1f} s")  # fmt: skip
