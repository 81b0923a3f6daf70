"""`actstore build`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.cluster import chosen_cluster, cluster_options
from cli.group import describe_rows, emit, example, json_option, warn_of_classes
from cli.networks import (
    DEFAULT_NETWORK,
    choose_default,
    fetch_if_asked,
    fetching_options,
    require_fetching_options,
)
from cli.options import (
    PATH,
    STORE,
    Place,
    device_option,
    layout_options,
    on_error_option,
    trained_on_option,
    weights_option,
)
from cli.progress import SplitBars

if TYPE_CHECKING:
    from actstore.backbones.loading import Backbone


@click.command(
    epilog=example(
        "actstore build imagenet/",
        "actstore build photos/ photos.zarr --backbone efficientnet-lite0",
        "actstore build photos/ photos.zarr --weights pretrained/best.safetensors",
        "actstore build photos/ --backbone timm:vit_small_patch16_224.dino --pretrained",
        "actstore build imagenet/ --backbone mypackage.nets:make --layer blocks.3 --layer head",
        "actstore build mini.tar --weights pretrained/best.safetensors --views 10",
        "actstore build imagenet/ --weights resnet50.pth --scheduler tcp://10.0.0.1:8786",
        "actstore build glyphs:100x20x5 glyphs.zarr --backbone small --random-weights",
    )
)
@click.argument("images", metavar="IMAGES")
@click.argument("store", required=False, type=STORE)
@click.option("--backbone",
              help="efficientnet-lite0 (or 1, 2), resnet50, resnet18, simple, wrn28-10, resnet10-narrow, resnet8, "
              "small, resnet8+resnet8, timm:NAME, torchvision:NAME or package.module:factory.  "
              f"{DEFAULT_NETWORK}")  # fmt: skip
@weights_option("A .pth or .safetensors file.")
@fetching_options
@click.option("--random-weights", is_flag=True, help="Untrained weights, for trying things out.")
@click.option("--layer", "layers", multiple=True,
              help="A module to read instead of the pooled output; may be repeated.")  # fmt: skip
@device_option()
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True)
@click.option("--workers", type=click.IntRange(0), help="Processes that decode, or threads in each worker of a "
              "cluster.  [default: 1, or up to 8 with a GPU]")  # fmt: skip
@click.option("--views", type=click.Choice(["1", "2", "10"]), default="1", show_default=True,
              help="2: average over an image and its mirror image; 10: over centre, corners and theirs. So many "
              "times the work.")  # fmt: skip
@on_error_option("skip", "What to do with an unreadable image; skipped ones are listed in the store.")
@click.option("--ground-truth", type=PATH, help="Labels of a flat ILSVRC val folder.")
@click.option("--synsets", type=PATH, help="WNIDs in the order of those labels.")
@click.option("--restart", is_flag=True, help="Discard an interrupted build instead of resuming it.")
@layout_options()
@trained_on_option
@cluster_options
@json_option
def build(
    images: str, store: Place | None, backbone: str | None, weights: Path | None, pretrained: bool, offline: bool,
    random_weights: bool, layers: tuple[str, ...], device: str, batch_size: int, workers: int | None, views: str,
    on_error: Any, ground_truth: Path | None, synsets: Path | None, restart: bool, scheduler: str | None,
    local_cluster: int | None, trained_on: list[str] | None, **layout: Any,
) -> None:  # fmt: skip
    """Run a backbone over IMAGES and write STORE (default: the name of IMAGES with .zarr).

    IMAGES: class folders, with or without train/ and val/; ILSVRC's or Tiny-ImageNet's own layout; a .tar of class
    folders; a .csv or .parquet of path,label; or glyphs:CLASSESxTRAINxVAL. Interrupted, the same command resumes,
    with the network that the store was begun with.
    """
    require_fetching_options(backbone, pretrained, offline)
    from actstore.compute.tensors import reuse_freed_memory
    from actstore.extraction.build import BuildOptions
    from actstore.extraction.build import build as run
    from actstore.images.image_set import classes_train_lacks
    from actstore.images.opening import open_images
    from actstore.storage.place import parse_place

    reuse_freed_memory()
    sets = open_images(images, ground_truth, synsets)
    lacking = classes_train_lacks({name: image_set.classes for name, image_set in sets.items()})
    warn_of_classes(lacking)
    target = store or parse_place(default_store(images))
    network, facts = load_network(target, backbone, weights, layers, random_weights, pretrained, offline)
    if trained_on is not None and network.trained_classes is not None:
        raise click.UsageError(f"{network.name} says itself which classes it was trained on; leave --trained-on out")
    path = None if weights is None else str(weights.resolve())
    options = BuildOptions(
        device, batch_size, workers, on_error, restart, path, layout, random_weights, facts, views=int(views)
    )
    begin = time.perf_counter()
    with chosen_cluster(scheduler, local_cluster) as cluster, SplitBars("build", "images") as bars:
        made = run(sets, images, target, network, options, bars, cluster)
    if trained_on is not None or random_weights:
        made.add_provenance(trained_classes=trained_on or [])
    seconds = time.perf_counter() - begin
    rows = {name: split.rows for name, split in made.splits.items()}
    skipped = sum(len(source.get("skipped", [])) for split in made.splits.values() for source in split.sources)
    result = {
        "store": str(target), "rows": rows, "dim": made.dim, "classes": len(made.classes), "skipped": skipped,
        "classes_train_lacks": lacking, "seconds": seconds,
    }  # fmt: skip
    text = f"{target}: {describe_rows(rows)}, dim {made.dim}, {len(made.classes)} classes, {seconds:.1f} s"
    emit(result, text + (f"; {skipped} files skipped, see `actstore info {target} --skipped`" if skipped else ""))


def load_network(
    target: Place, backbone: str | None, weights: Path | None, layers: tuple[str, ...], random_weights: bool,
    pretrained: bool, offline: bool,
) -> tuple[Backbone, dict[str, str]]:  # fmt: skip
    """The network asked for, else that of the store as far as it is there, else a default; and what the store is to
    keep about the choice."""
    from actstore.backbones.loading import load_backbone, stated_backbone
    from actstore.errors import InvalidInputError
    from actstore.extraction.target import begun_network

    if backbone is not None or weights is not None or random_weights:
        name = backbone or (stated_backbone(weights) if weights is not None else None) or "resnet50"
        fetch_if_asked(name, pretrained)
        return load_backbone(name, weights, layers, random_weights=random_weights, pretrained=pretrained), {}
    if (begun := begun_network(target)) is not None:
        name, sha256 = begun
        if ":" in name:  # code of others, which a store alone is no reason to run
            raise InvalidInputError(f"{target} was begun with {name}; name it with --backbone to go on")
        network = load_backbone(name, None, layers, expected_sha256=sha256)
        if network.weights_sha256 != sha256:
            raise InvalidInputError(
                f"{target} was begun with other weights of {name} than those at hand; name them with --weights"
            )
        return network, {}
    choice = choose_default(offline)
    return load_backbone(choice.name, None, layers), {"network_chosen": choice.reason}


def default_store(images: str) -> Path:
    """imagenet/ -> imagenet.zarr, mini.tar -> mini.zarr; glyphs:10x5x2 -> glyphs.zarr"""
    name = Path(images.split(":")[0]).resolve().name
    return Path(name.split(".tar")[0].removesuffix(".csv").removesuffix(".parquet") + ".zarr")
