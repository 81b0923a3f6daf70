"""`actstore search`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from actstore.search import INDEX_KINDS, SEARCH_METHODS
from cli.group import emit, example, json_option, table
from cli.options import FILE, PATH, device_option, split_option, weights_option
from cli.row_options import filter_options, where_option
from cli.stores import Place, Split, chosen_rows, open_split, store_argument


@click.command(
    epilog=example(
        "actstore search imagenet.zarr --image cat.jpg -k 10",
        "actstore search imagenet.zarr --row 17",
        "actstore search imagenet.zarr --row 17 --class tench --glob '*/n01440764_1*'",
        "actstore search imagenet.zarr --vector v.npy --method ivf --json",
    )
)
@store_argument
@split_option
@click.option("--image", "images", multiple=True, type=PATH, help="An image file; repeatable.")
@click.option("--row", type=click.IntRange(0), help="A row of the split; it is not listed among its own neighbours.")
@click.option("--vector", type=FILE, help="A .npy of shape (dim,) or (n, dim).")
@filter_options
@where_option
@click.option("-k", type=click.IntRange(1), default=10, show_default=True, help="How many neighbours.")
@click.option("--method", type=click.Choice(SEARCH_METHODS), default="auto", show_default=True,
              help="auto: exact, by the bounded index where there is one. Others but faiss need `actstore index`."
              )  # fmt: skip
@click.option("--metric", type=click.Choice(["cosine", "inner"]), default="cosine", show_default=True)
@weights_option("The backbone's weights, for --image.")
@device_option("cpu", "cpu, cuda, cuda:1 or auto.", of_torch=False)
@json_option
def search(
    store: Place, split: str | None, images: tuple[Path, ...], row: int | None, vector: Path | None, k: int,
    method: str, metric: str, weights: Path | None, device: str, **filters: Any,
) -> None:  # fmt: skip
    """The rows of STORE nearest to an image, a row or a vector, by cosine.

    --class, --glob, --rows and --where limit the rows that are searched. An image goes through the backbone that
    made the store; its weights must be the very same.
    """
    from actstore.search import remarks

    if (bool(images), row is not None, vector is not None).count(True) != 1:
        raise click.UsageError("give one of --image, --row and --vector")
    opened = open_split(store, split)
    names, vectors = _queries(opened, images, row, vector, weights, device)
    among = chosen_rows(opened, **filters)
    itself = row is not None and (among is None or row in among)
    others = (len(opened) if among is None else len(among)) - itself
    if k > others and not (among is not None and not len(among)):
        raise click.UsageError(f"-k is {k:,}, but only {others:,} rows are there to be found; ask for fewer")
    scores, nearest = opened.search(vectors, k + itself, rows=among, method=method, metric=metric, device=device)
    wanted = ("bounded",) if method in ("auto", "bounded") else () if method in ("exact", "faiss") else INDEX_KINDS
    for name, remark in remarks(opened):  # an index that could have been used covers only some of the rows, or none
        if name in wanted:
            click.echo(remark, err=True)
    listed = [
        entry
        for number, name in enumerate(names)
        for entry in _neighbours(opened, name, scores[number].tolist(), nearest[number].tolist(), row, k)
    ]
    result = {"store": str(opened.store_path), "split": opened.name, "method": method, "metric": metric,
              "neighbours": listed}  # fmt: skip
    header = [*(["query"] if len(names) > 1 else []), "rank", "score", "row", "class", "id"]
    emit(result, table(header, [[_shown(entry[key]) for key in header] for entry in listed]))


def _queries(
    split: Split, images: tuple[Path, ...], row: int | None, vector: Path | None, weights: Path | None, device: str
) -> tuple[list[str], Any]:
    """What each query is called, and the vectors (n, dim)."""
    if images:
        from actstore.extraction import embed_images

        return [str(path) for path in images], embed_images(split, images, weights, device)
    if row is not None:
        return [f"row {row}"], split.take([row])
    import numpy as np

    from actstore.storage import load_npy

    assert vector is not None
    values = np.atleast_2d(load_npy(vector, "a .npy file of numbers"))
    return [f"{vector.name}[{number}]" for number in range(len(values))], values


def _neighbours(
    split: Split, query: str, scores: list[float], rows: list[int], itself: int | None, k: int
) -> list[dict[str, Any]]:
    others = [(score, row) for score, row in zip(scores, rows, strict=True) if row != itself][:k]
    names = (*split.classes, None)  # label -1 picks the last: no class
    return [
        {"query": query, "rank": rank, "score": score, "row": row, "class": names[split.labels[row]],
         "id": split.ids[row]}
        for rank, (score, row) in enumerate(others, start=1)
    ]  # fmt: skip


def _shown(value: Any) -> Any:
    return f"{value:.4f}" if isinstance(value, float) else "" if value is None else value
