"""`actstore compare`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from actstore.progress import bar
from cli.group import emit, example, json_option, table
from cli.options import FILE, ending, seed_option
from cli.outputs import claim
from cli.stores import STORE, Place, cache_options, sources_of

if TYPE_CHECKING:
    from actstore.analysis import Comparison

MEASURES = ("cka", "procrustes", "rsa-spearman", "rsa-pearson", "knn")


@click.command(
    epilog=example(
        "actstore compare resnet50.zarr clip.zarr",
        "actstore compare photos.zarr/train.layer2 photos.zarr/train.layer3 photos.zarr/train --chart layers.png",
        "actstore compare a.zarr/val b.zarr/val --measure cka --json",
    )
)
@click.argument("representations", nargs=-1, required=True, type=STORE, metavar="STORE[/SPLIT] STORE[/SPLIT] …")
@cache_options
@click.option("--measure", "measures", multiple=True, type=click.Choice(MEASURES), help="Repeatable.  [default: all]")
@click.option("--sample", type=click.IntRange(3), default=2000, show_default=True,
              help="Rows for RSA and k-NN, which look at all pairs.")  # fmt: skip
@click.option("-k", type=click.IntRange(1), default=10, show_default=True, help="Neighbours of each row for k-NN.")
@click.option("--distance", type=click.Choice(["correlation", "cosine", "euclidean"]), default="correlation",
              show_default=True, help="Between rows, for RSA.")  # fmt: skip
@click.option("--resamples", type=click.IntRange(0), default=200, show_default=True,
              help="Of the bootstrap over rows that gives 95% intervals; 0: none.")  # fmt: skip
@seed_option
@click.option("--output", "-o", type=FILE, callback=ending(".csv"), help="Also write the table, .csv.")
@click.option("--chart", type=FILE, callback=ending(".png", ".svg"),
              help="Also draw a heat map of each measure, .png or .svg.")  # fmt: skip
@json_option
def compare(
    representations: tuple[Place, ...], measures: tuple[str, ...], sample: int, k: int, distance: str, resamples: int,
    seed: int, output: Path | None, chart: Path | None,
) -> None:  # fmt: skip
    """How alike representations of the same images are: networks, layers, seeds.

    Linear CKA and Procrustes similarity of all rows that the stores have in common by id; RSA (correlation of all
    distances, by rank and as they are) and mutual k-NN of a sample of them. One pass over the rows, in bounded memory.
    """
    import actstore
    from actstore.analysis import open_representation

    if len(representations) < 2:
        raise click.UsageError("give two stores or splits to compare, or more")
    splits = [open_representation(place) for place in representations]
    inputs = [path for split in splits for path in sources_of(split)]
    claim(output, chart, inputs=inputs)
    with bar("compare", len(splits[0]), "rows", True) as done:
        found = actstore.compare(
            *splits, names=[str(place) for place in representations], progress=done.update,
            measures=measures or MEASURES, sample=sample, k=k, distance=distance, resamples=resamples, seed=seed,
        )  # fmt: skip
    if output is not None:
        from actstore.storage import write_atomic

        write_atomic(output, found.to_pandas().to_csv(index=False).encode())
    if chart is not None:
        from predictor.figures import draw_similarities, save

        save(draw_similarities(found.names, {name: found.matrix(name) for name in found.settings.measures}), chart)
    result = {"rows": found.rows, "sampled": found.sampled, "settings": asdict(found.settings),
              "similarities": found.records(), "notes": list(found.notes)}  # fmt: skip
    emit(result, _text(found))


def _text(found: Comparison) -> str:
    sampled = f"; RSA and k-NN of {found.sampled:,} of them" if found.sampled else ""
    lines = [
        [each["one"], each["other"], each["measure"], *(_shown(each[key]) for key in ("value", "low", "high"))]
        for each in found.records()
    ]
    header = ["one", "other", "measure", "value", "95% from", "to"]
    notes = [f"note: {note}" for note in found.notes]
    return "\n".join([f"{found.rows:,} rows in common{sampled}", "", table(header, lines), *notes])


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
