"""Trainings of `ppa baseline` that read images, and the stores that are extracted with what they learned."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from cli.ppa.baseline_request import Request, Trainer
from cli.progress import SplitBars

if TYPE_CHECKING:
    from predictor.training import Trained

OPTIONS = frozenset(
    {"images", "backbone", "weights", "workers", "flip", "steps", "batch_size", "learning_rate", "extract"}
)
Sets = Mapping[str, Any]  # split name -> images


def _triplet_images(request: Request) -> Trained:
    from baselines.triplet_images import train_triplet_images

    sets = _open_images(request)
    trained = _train(request, sets, train_triplet_images)
    _extract(request, sets)
    return trained


def _finetune_images(request: Request) -> Trained:
    from baselines.finetune import Draw, train_finetuned

    sets = _open_images(request)
    draw = Draw(request.given["shots"] or 1, request.given["draw"] or 0, request.given["seed"])
    trained = _train(request, sets, train_finetuned, draw=draw)
    # Only queries are ever read with these weights: the few examples are in the classifier already.
    _extract(request, {name: images for name, images in sets.items() if name != "train"})
    return trained


def _open_images(request: Request) -> Sets:
    from actstore.images.opening import open_images

    return open_images(request.require("images"))


def _train(request: Request, sets: Sets, train: Callable[..., Trained], **more: Any) -> Trained:
    from actstore.backbones.loading import load_backbone
    from baselines.image_training import ImageConfig

    backbone = load_backbone(request.require("backbone"), request.require("weights"))
    categories = request.categories(sorted({name for images in sets.values() for name in images.classes}))
    changed = request.settings("steps", "batch_size", "learning_rate", "flip")
    config = ImageConfig(seed=request.given["seed"], **changed)
    trained = train(
        sets, categories, backbone, request.folder, config, device=request.device,
        workers=request.given["workers"] or 0, options=request.run_options, report=request.bars.report,
        decoded=request.bars.decoded, **more,
    )  # fmt: skip
    request.bars.close()
    return trained


def _extract(request: Request, sets: Sets) -> None:
    """OUT/store.zarr, with the weights that were just trained; an interrupted one is completed."""
    from actstore.backbones.loading import load_backbone
    from actstore.extraction.build import BuildOptions, build
    from baselines.image_training import STORE, WEIGHTS

    if request.given["extract"] is False:
        return
    if not sets:
        click.echo("no split beside train: there are no queries to extract", err=True)
        return
    store, weights = request.folder / STORE, request.folder / WEIGHTS
    if request.given["restart"] and (store / "zarr.json").exists():
        shutil.rmtree(store)
    backbone = load_backbone(request.given["backbone"], weights)
    workers, path = request.given["workers"] or 0, str(weights.resolve())
    extracting = SplitBars("extract", "images")
    try:
        build(
            sets, request.given["images"], store, backbone,
            BuildOptions(request.given["device"], workers=workers, weights=path), extracting,
        )  # fmt: skip
    finally:
        extracting.close()
    request.more["store"] = str(store)


IMAGE_TRAINERS = {
    "triplet-images": Trainer(_triplet_images, OPTIONS),
    "finetune-images": Trainer(_finetune_images, OPTIONS | {"shots", "draw"}),
}
