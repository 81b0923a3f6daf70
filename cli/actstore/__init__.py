"""The command `actstore`: build, keep and query activations."""

from __future__ import annotations

from cli.actstore.audit import audit
from cli.actstore.build import build
from cli.actstore.compare import compare
from cli.actstore.copies import rechunk, select
from cli.actstore.generated import glyphs, synth
from cli.actstore.imports import append, import_
from cli.actstore.info import info
from cli.actstore.map import map_
from cli.actstore.neighbours import index, knn
from cli.actstore.rows import export, query
from cli.actstore.search import search
from cli.actstore.whole_store import means, verify
from cli.group import Commands, example

main = Commands.of(
    "actstore",
    """Keep millions of image activations in plain Zarr, and read them at the speed of a memory map.

    STORE defaults to $ACTSTORE, or to the one *.zarr in the current folder.
    """,
    example(
        "actstore import features.npy imagenet.zarr --labels labels.npy",
        "actstore info imagenet.zarr",
        "actstore query imagenet.zarr --class n01440764 --output rows.npy",
    ),
    [
        build, glyphs, import_, append, select, rechunk, info, verify, audit, means, query, search, index, export,
        compare, knn, map_, synth,
    ],
)  # fmt: skip
