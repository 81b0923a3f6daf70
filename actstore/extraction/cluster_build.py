"""What a worker of a cluster does for a build: a range of images through a backbone of its own.

Workers see images and weights, never the store: their rows come back in order and one process writes them, so
that ledger, lock, resume and every byte are those of a build on one machine. Torch's threads are part of this:
resnet50 on one thread differs in the last bits from resnet50 on two (not 2 from 3, 4 or 8; small, simple and
resnet18 never differ: measured with torch 2.13 on a CPU), and dask gives its workers one. So a worker uses as
many threads as the client would.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.backbones.loading import Backbone, load_backbone
from actstore.compute.cluster import Cluster, worker_name
from actstore.compute.device import count_devices, is_accelerator, parse_device
from actstore.compute.tensors import convert_into, first_non_finite_row
from actstore.errors import ActstoreError, InvalidInputError
from actstore.extraction.forward import (
    BuildOptions,
    ExtractedBatch,
    ImageRange,
    count_decoders,
    decode_in_threads,
    move_to,
    pass_through,
)
from actstore.images.image_set import ImageItem, Loadable

TASK_ITEMS = 256  # 1 MiB of 2048 fp16 values, 20 s of a slow CPU: little to lose with a worker, or with the client
_ONE_AT_A_TIME = threading.Lock()  # a worker of several threads still has one backbone and one device


@dataclass(frozen=True)
class Recipe:
    """How to load a backbone, and the hash of the weights it must then have."""

    name: str
    weights: str | None
    random_weights: bool
    layers: tuple[str, ...]
    weights_sha256: str | None
    pretrained: bool


def extract_on_cluster(
    cluster: Cluster, backbone: Backbone, options: BuildOptions, wanted: ImageRange
) -> Iterator[ExtractedBatch]:
    """Batches of a split from the workers of a cluster, in order."""
    recipe = Recipe(
        backbone.name, options.weights, options.random_weights, tuple(backbone.layers), backbone.weights_sha256,
        backbone.pretrained,
    )  # fmt: skip
    ranges = task_ranges(wanted.first, len(wanted.items), options.batch_size, wanted.chunk_rows)
    parts = (
        replace(wanted, items=[_with_absolute_path(item) for item in wanted.items[start:stop]], first=start)
        for start, stop in ranges
    )
    run = partial(run_extraction, recipe, options, torch.get_num_threads())
    for batches in cluster.map(f"extract-{wanted.split}", run, parts):
        yield from batches


def task_ranges(first: int, count: int, batch_size: int, chunk_rows: int) -> list[tuple[int, int]]:
    """[start, stop) of every task, from the batch of item `first` on: about a chunk of items, and whole batches."""
    step = max(1, min(chunk_rows, TASK_ITEMS) // batch_size) * batch_size
    return [(start, min(start + step, count)) for start in range(first - first % batch_size, count, step)]


def run_extraction(recipe: Recipe, options: BuildOptions, threads: int, wanted: ImageRange) -> list[ExtractedBatch]:
    """In a worker: a whole number of batches, one after the other, rows in the store's type."""
    with _ONE_AT_A_TIME:
        device = _device_of_worker(options.device)
        backbone = _load(recipe, device)
        torch.set_num_threads(threads)
        decoders = count_decoders(options.workers, device)
        decoded = decode_in_threads(wanted.items, backbone.transform, options.batch_size, decoders, options.views)
        return [_as_stored(batch, wanted) for batch in pass_through(backbone, device, decoded)]


def _as_stored(batch: ExtractedBatch, wanted: ImageRange) -> ExtractedBatch:
    """Rows in the type of the store, positions counted from the beginning of the split."""
    rows = {layer: _converted(batch.rows[layer], wanted.dtype) for layer in wanted.layers}
    positions = [wanted.first + position for position in batch.positions]
    failures = [(wanted.first + position, reason) for position, reason in batch.failures]
    return ExtractedBatch(rows, positions, failures, batch.facts)


def _converted(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Half the traffic; rows that the store will refuse travel as they are, so that its writer can say why."""
    converted = np.empty(values.shape, "<" + dtype)
    convert_into(converted, values)
    return values if first_non_finite_row(converted) is not None else converted


@lru_cache(maxsize=1)
def _load(recipe: Recipe, device: torch.device) -> Backbone:
    weights = None if recipe.weights is None else Path(recipe.weights)
    try:
        backbone = load_backbone(
            recipe.name, weights, recipe.layers, random_weights=recipe.random_weights, pretrained=recipe.pretrained
        )
    except ActstoreError as error:
        raise InvalidInputError(f"worker {worker_name()} cannot load the backbone: {error}") from error
    if backbone.weights_sha256 != recipe.weights_sha256:
        raise InvalidInputError(
            f"worker {worker_name()} has other weights of {recipe.name} ({recipe.weights or 'no file'}) than the "
            f"client: sha256 {str(backbone.weights_sha256)[:12]}, expected {str(recipe.weights_sha256)[:12]}; "
            "give it the same file at the same path"
        )
    move_to(device, backbone)
    return backbone


def _device_of_worker(name: str) -> torch.device:
    try:
        device = parse_device(name)
    except InvalidInputError as error:
        raise InvalidInputError(f"worker {worker_name()}: {error}") from error
    if not is_accelerator(device) or ":" in name:
        return device
    return torch.device(device.type, gpu_of(worker_name(), count_devices(device.type)))


def gpu_of(worker: str, gpus: int) -> int:
    """The GPU of a worker by the number its name ends in, as `--local-cluster` and `dask worker --nworkers` count."""
    number = re.fullmatch(r"(?:.*[^\d.:])?(\d+)", worker)
    return 0 if number is None else int(number[1]) % gpus


def _with_absolute_path(item: Loadable) -> Loadable:
    """The same item for a process in another working folder."""
    return replace(item, source=os.path.abspath(item.source)) if isinstance(item, ImageItem) else item  # noqa: PTH100
