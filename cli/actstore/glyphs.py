"""`actstore glyphs`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from cli.group import emit, example, json_option
from cli.options import FOLDER, seed_option
from cli.progress import progress


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
@json_option
def glyphs(out: Path, classes: int, per_class: int, val_per_class: int, seed: int, size: int) -> None:
    """Draw the embedded data set into OUT/train and OUT/val: Unicode characters in 12 faces, needs no download.

    Deterministic by seed. Files that are there are kept: interrupted, the same command resumes.
    """
    from actstore.images import write_glyphs

    total, begin = classes * (per_class + val_per_class), time.perf_counter()
    with progress("glyphs", total, "images") as bar:
        written = write_glyphs(out, classes, per_class, val_per_class, seed, size, progress=bar.update)
    seconds = time.perf_counter() - begin
    train, val = classes * per_class, classes * val_per_class
    result = {
        "folder": str(out), "classes": classes, "train": train, "val": val, "written": written, "seed": seed,
        "size": size, "seconds": seconds,
    }  # fmt: skip
    emit(result, f"{out}: {train:,} train and {val:,} val images of {classes:,} classes, {size} x {size}, "
         f"{written:,} written in {seconds:.1f} s")  # fmt: skip
