"""`actstore build`."""

from __future__ import annotations

import time
from typing import Any

import click

from cli.actstore.info import counted_files
from cli.group import describe_rows, emit, example, json_option
from cli.options import PATH, device_option, on_error_option, weights_option
from cli.row_options import (
    DEFAULT_NETWORK,
    chosen_cluster,
    cluster_options,
    fetching_options,
    layout_options,
    require_fetching_options,
    trained_on_option,
)
from cli.stores import STORE, Place


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
              "small, resnet8+resnet8, efficientnet-lite0+efficientnet-lite2, timm:NAME, torchvision:NAME or "
              "package.module:factory.  "
              f"{DEFAULT_NETWORK}")  # fmt: skip
@weights_option("A .pth or .safetensors file.")
@fetching_options
@click.option("--random-weights", is_flag=True, help="Untrained weights, for trying things out.")
@click.option("--layer", "layers", multiple=True,
              help="A module to read instead of the pooled output; may be repeated.")  # fmt: skip
@click.option("--val-share", "val", type=click.FloatRange(0, 1, min_open=True, max_open=True),
              help="Hold so much of each class out of train, as split val, such as 0.2.")  # fmt: skip
@device_option()
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True)
@click.option("--workers", type=click.IntRange(0), help="Threads that decode, here or in each worker of a cluster.  "
              "[default: 1, or up to 8 with a GPU]")  # fmt: skip
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
    images: str, store: Place | None, backbone: str | None, pretrained: bool, offline: bool, views: Any,
    scheduler: str | None, local_cluster: int | None, **options: Any,
) -> None:  # fmt: skip
    """Run a backbone over IMAGES and write STORE (default: the name of IMAGES with .zarr).

    IMAGES: class folders, with or without folders of splits (train, val and test, also as Training or seg_test);
    ILSVRC's or Tiny-ImageNet's own layout; a .tar of class folders; a .csv or .parquet with columns path, label and, if
    there are several splits, split (else all is train); or glyphs:CLASSESxTRAINxVAL. Interrupted, the same command
    resumes, with the network that the store was begun with.
    """
    require_fetching_options(backbone, pretrained, offline)
    import actstore

    begin = time.perf_counter()
    with chosen_cluster(scheduler, local_cluster) as cluster:
        made = actstore.build(images, store, views=int(views), cluster=cluster, progress=True, backbone=backbone,
                              pretrained=pretrained, offline=offline, **options)  # fmt: skip
    seconds = time.perf_counter() - begin
    rows = {name: split.rows for name, split in made.splits.items()}
    skipped = sum(len(source.get("skipped", [])) for split in made.splits.values() for source in split.sources)
    result = {
        "store": str(made.path), "rows": rows, "dim": made.dim, "classes": len(made.classes), "skipped": skipped,
        "classes_train_lacks": made.classes_train_lacks(), "seconds": seconds,
    }  # fmt: skip
    text = f"{made.path}: {describe_rows(rows)}, dim {made.dim}, {len(made.classes)} classes, {seconds:.1f} s"
    how = f"; {counted_files(skipped)} skipped, see `actstore info {made.path} --skipped`"
    emit(result, text + how * bool(skipped))
