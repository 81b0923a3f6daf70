"""`ppa predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.group import emit, example, json_option
from cli.options import STORE, cache_options, filter_options
from cli.ppa.classifier_option import classifier_option

if TYPE_CHECKING:
    from actstore.storage.place import Place


@click.command(
    epilog=example(
        "ppa predict photo.jpg another.jpg",
        "ppa predict photos/ --classifier classifier.safetensors --top 3 --json",
        "ppa predict --store imagenet.zarr --split val --rows 0:1000",
    )
)
@click.argument("images", nargs=-1, type=click.Path(path_type=Path))
@classifier_option
@click.option("--store", type=STORE, help="Classify rows of a store instead of images.")
@cache_options
@click.option("--split", help="Of --store.  [default: the only one, or train]")
@filter_options
@click.option("--top", type=click.IntRange(1), default=5, show_default=True)
@click.option("--weights", type=click.Path(path_type=Path), help="The backbone's weights, where they have moved.")
@click.option("--device", default="auto", show_default=True)
@click.option("--on-error", type=click.Choice(["fail", "skip"]), default="fail", show_default=True)
@json_option
def predict(
    images: tuple[Path, ...], classifier: Path, store: Place | None, split: str | None, classes: tuple[str, ...],
    path_glob: str | None, rows: str | None, top: int, weights: Path | None, device: str, on_error: str, as_json: bool,
) -> None:  # fmt: skip
    """The most probable categories of IMAGES (files or folders), or of rows of a store."""
    from cli.ppa.support import list_queries, read_images, read_rows
    from predictor.classifier.classifier_file import load_classifier

    if bool(images) == (store is not None):
        raise click.UsageError("give images to classify, or rows of a store with --store: one of the two")
    learner = load_classifier(classifier)
    network = learner.about.get("network", {})
    if store is not None:
        opened, chosen, activations = read_rows(network, store, split, classes, path_glob, rows)
        names = [opened.ids[int(row)] for row in chosen]
    else:
        activations, items = read_images(network, weights, list_queries(images), device, on_error)
        names = [item.path.as_posix() for item in items]
    found = learner.predict(activations, top)
    result = [
        {"image": name, "top": [{"category": category, "probability": share} for category, share in one]}
        for name, one in zip(names, found, strict=True)
    ]
    emit(result, as_json, lambda: "\n".join(
        f"{name}\n" + "\n".join(f"  {share:6.1%}  {category}" for category, share in one)
        for name, one in zip(names, found, strict=True)
    ))  # fmt: skip
