"""Images -> backbone -> store: every readable image becomes one row, in the order of its source, with its size and date
as columns; what must be the same for a build to go on in a store: images, network, transform; and what a worker of a
cluster does for it.

Workers see images and weights, never the store: their rows come back in order and one process writes them, so that
ledger, lock, resume and every byte are those of a build on one machine. Torch's threads are part of this: resnet50 on
one thread differs in the last bits from resnet50 on two (not 2 from 3, 4 or 8; small, simple and resnet18 never differ:
measured with torch 2.13 on a CPU), and dask gives its workers one. So a worker uses as many threads as the client
would.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.backbones.loading import Backbone
from actstore.compute.cluster import Cluster, worker_name
from actstore.compute.device import count_devices, has_streams, is_accelerator, parse_device
from actstore.compute.tensors import convert_into, first_non_finite_row
from actstore.errors import ActstoreError, InvalidInputError, UnreadableImageError
from actstore.extraction.forward import (
    Batch,
    columns_of,
    decode_batches,
    load_recorded,
    move_to,
    pass_through,
    record_of,
)
from actstore.images.image_set import ImageItem, ImageSet, Loadable
from actstore.progress import SplitProgress
from actstore.spec import Json, StoreSpec
from actstore.storage.place import AnyPlace, Place, parse_place
from actstore.store import ActivationStore, create, open
from actstore.writing.split_writer import SplitWriter


@dataclass(frozen=True)
class BuildOptions:
    """How images become rows; a network of a given name and weights and these give the same bytes everywhere."""

    device: str = "auto"
    batch_size: int = 32
    workers: int | None = 1  # threads that decode, here or in each worker of a cluster; None: by the device
    on_error: Literal["skip", "fail"] = "skip"
    restart: bool = False
    weights: str | None = None  # the file the backbone came from, so that it can be loaded again
    layout: Mapping[str, Any] = field(default_factory=dict)  # dtype, chunk_rows, codec, … of a new store
    facts: Mapping[str, Json] = field(default_factory=dict)  # which a new store keeps beside its network
    views: int = field(default=1, kw_only=True)  # of each image, averaged: its centre, or 10: see `Transform.views`

    def decoders(self, device: torch.device) -> int:
        """As asked for, else 1 beside a CPU and up to 8 beside a GPU."""
        if self.workers is not None:
            return self.workers
        return min(8, os.cpu_count() or 1) if is_accelerator(device) else 1


def _open_target(
    path: Place, sets: Mapping[str, ImageSet[Loadable]], source: str, backbone: Backbone, options: BuildOptions
) -> ActivationStore:
    classes = sorted({name for images in sets.values() for name in images.classes})
    layers = list(backbone.layers)
    if (path / "zarr.json").exists():
        store = open(path)
        if store.dim != backbone.layers[layers[0]]:
            raise InvalidInputError(
                f"{path} holds activations of dim {store.dim}, {backbone.name} gives {backbone.layers[layers[0]]}; "
                "choose another store"
            )
        if (before := store.spec.provenance.get("views", 1)) != options.views:
            raise InvalidInputError(
                f"{path} holds activations of {before} view(s) of each image, asked for were {options.views}; "
                "choose another store"
            )
        store.add_classes(classes)
        return store
    longest = max(len(images.items) for images in sets.values())
    trained = None if backbone.trained_classes is None else list(backbone.trained_classes)
    provenance = {
        "source": source,
        "backbone": backbone.name,
        "weights_sha256": backbone.weights_sha256,
        "layers": layers,
        "transform": backbone.transform.to_json(),
        "trained_classes": trained,
        **_rare_facts(backbone, options.views),
        **options.facts,
    }
    dim = backbone.layers[layers[0]]
    return create(path, classes=classes, dim=dim, provenance=provenance, rows=longest, **options.layout)


def is_finished(store: ActivationStore, split: str, origin: Mapping[str, Json]) -> bool:
    """Whether these images were built into the split, before or after whatever else was added to it."""
    done = store.splits.get(split)
    if done is None or not done.complete:
        return False
    built = [source for source in done.sources if source.get("kind") == "images"] or done.sources
    changed = min((_differences(source, origin) for source in built), key=len)
    if changed:
        raise InvalidInputError(
            f"{store.path} has a finished split {split!r} of another build (differs in {', '.join(changed)}); "
            "choose another store"
        )
    store.remove_leftovers(split)
    return True


def _differences(before: Mapping[str, Json], origin: Mapping[str, Json]) -> list[str]:
    """A folder that was moved is the same one: its listing tells, and that nothing lies where it was."""
    keys = {*origin, "views", "val_share"}  # the last two are recorded only where they were given
    was, is_now = Path(before.get("path", "")), Path(origin["path"])
    if is_now.exists() and (was.resolve() == is_now.resolve() or not was.exists()):
        keys.discard("path")
    return sorted(key for key in keys if before.get(key) != origin.get(key))


def origin_of(
    images: ImageSet[Loadable], source: str, split: str, layer: str, backbone: Backbone, views: int
) -> dict[str, Json]:
    """What must be the same for a build to be resumed: images, network, layer, transform, views."""
    return {
        "kind": "images",
        "path": source,
        "split": split,
        "images": len(images.items),
        "listing": images.listing_hash(),
        **({"val_share": images.val_share} if images.val_share else {}),
        "backbone": backbone.name,
        "weights_sha256": backbone.weights_sha256,
        "layer": layer,
        "transform": backbone.transform.to_json(),
        **_rare_facts(backbone, views),
    }


def _rare_facts(backbone: Backbone, views: int) -> dict[str, Json]:
    """Recorded only where they apply: stores of one view and of weights at hand stay as they were, byte for byte."""
    return ({"pretrained": True} if backbone.pretrained else {}) | ({} if views == 1 else {"views": views})


Extraction = Callable[[str, Sequence[Loadable], int, StoreSpec], Iterator[Batch]]  # of a split from an item on


def build(
    sets: Mapping[str, ImageSet[Loadable]],
    source: str,
    store: AnyPlace,
    backbone: Backbone,
    options: BuildOptions = BuildOptions(),  # noqa: B008 - frozen
    progress: SplitProgress | None = None,
    cluster: Cluster | None = None,
) -> ActivationStore:
    """Extract every split; what an interrupted build has on disk is kept, finished splits are left alone.

    A backbone of several layers fills a split each: `train` for the first, `train.LAYER` for the others.
    cluster: its workers decode and run the backbone, this process alone writes; the bytes are the same.
    """
    extract = _extraction(backbone, options, cluster)
    target = _open_target(parse_place(store), sets, source, backbone, options)
    for split, images in sets.items():
        if images.items:
            _build_split(target, split, images, source, backbone, options, extract, progress)
    return target


def _extraction(backbone: Backbone, options: BuildOptions, cluster: Cluster | None) -> Extraction:
    if cluster is not None:
        return partial(_extract_on_cluster, cluster, backbone, options)
    device = parse_device(options.device)
    move_to(device, backbone)

    def extract_here(_: str, items: Sequence[Loadable], first: int, __: StoreSpec) -> Iterator[Batch]:
        threads, pin = options.decoders(device), has_streams(device)
        transform, size = backbone.transform, options.batch_size
        return pass_through(
            backbone, device, decode_batches(items, transform, size, first, threads, pin, options.views)
        )

    return extract_here


def _build_split(
    store: ActivationStore,
    split: str,
    images: ImageSet[Loadable],
    source: str,
    backbone: Backbone,
    options: BuildOptions,
    extract: Extraction,
    progress: SplitProgress | None,
) -> None:
    names = {layer: f"{split}.{layer}" if number else split for number, layer in enumerate(backbone.layers)}
    origin = {layer: origin_of(images, source, split, layer, backbone, options.views) for layer in names}
    unfinished = [layer for layer in names if not is_finished(store, names[layer], origin[layer])]
    if not unfinished:
        return
    with ExitStack() as stack:
        targets = []
        for layer in unfinished:
            dim = backbone.layers[layer]
            writer = store.writer(names[layer], source=origin[layer], restart=options.restart, dim=dim)
            targets.append(_LayerTarget(layer, stack.enter_context(writer), images.items))
        first = min(target.next_item for target in targets)
        for batch in extract(split, images.items, first, store.spec):
            if batch.failures and options.on_error == "fail":
                raise InvalidInputError(f"{batch.failures[0][1]} (--on-error skip leaves such files out)")
            for target in targets:
                target.append(batch)
            if progress is not None:
                progress(split, min(len(images.items), batch.end), len(images.items))
        for target in targets:
            skipped = [*map(list, images.skipped), *target.skipped()]
            target.writer.commit(skipped=skipped, batch_size=options.batch_size, weights=options.weights)


class _LayerTarget:
    """The writer of one layer, and which item it needs next."""

    def __init__(self, layer: str, writer: SplitWriter, items: Sequence[Loadable]) -> None:
        self.layer, self.writer, self._items = layer, writer, items
        self.next_item = 0
        if (last := writer.last_id()) is not None:  # unreadable images have no row, so only ids lead back to items
            self.next_item = next(position for position, item in enumerate(items) if item.id == last) + 1

    def append(self, batch: Batch) -> None:
        keep = [index for index, position in enumerate(batch.positions) if position >= self.next_item]
        if keep:
            items = [self._items[batch.positions[index]] for index in keep]
            labels = np.array([item.label for item in items], dtype=object)
            columns = columns_of([batch.facts[index] for index in keep])
            self.writer.append(batch.rows[self.layer][keep], labels, [item.id for item in items], columns)

    def skipped(self) -> Iterator[list[str]]:
        """Items without a row, with the reason; found by walking along the ids that were written."""
        written = iter(self.writer.ids())
        expected = next(written, None)
        for item in self._items:
            if item.id == expected:
                expected = next(written, None)
            else:
                try:
                    item.load()
                    yield [item.id, "unreadable when it was built"]
                except UnreadableImageError as error:
                    yield [item.id, str(error)]


TASK_ITEMS = 256  # 1 MiB of 2048 fp16 values, 20 s of a slow CPU: little to lose with a worker, or with the client
_ONE_AT_A_TIME = threading.Lock()  # a worker of several threads still has one backbone and one device


def _extract_on_cluster(
    cluster: Cluster, backbone: Backbone, options: BuildOptions, split: str, items: Sequence[Loadable], first: int,
    spec: StoreSpec,
) -> Iterator[Batch]:  # fmt: skip
    """Batches of a split from the workers of a cluster, in order."""
    weights = None if options.weights is None else Path(options.weights)
    network = json.dumps([record_of(backbone, weights), list(backbone.layers)])
    tasks = (
        (start, [_with_absolute_path(item) for item in items[start:stop]])
        for start, stop in task_ranges(first, len(items), options.batch_size, spec.chunk_rows)
    )
    run = partial(run_extraction, network, options, torch.get_num_threads(), spec.dtype)
    for batches in cluster.map(f"extract-{split}", run, tasks):
        yield from batches


def task_ranges(first: int, count: int, batch_size: int, chunk_rows: int) -> list[tuple[int, int]]:
    """[start, stop) of every task, from the batch of item `first` on: about a chunk of items, and whole batches."""
    step = max(1, min(chunk_rows, TASK_ITEMS) // batch_size) * batch_size
    return [(start, min(start + step, count)) for start in range(first - first % batch_size, count, step)]


def run_extraction(
    network: str, options: BuildOptions, threads: int, dtype: str, task: tuple[int, Sequence[Loadable]]
) -> list[Batch]:
    """In a worker: a whole number of batches, one after the other, rows in the store's type.

    task: items, and the number of the first of them in the split. network: the record of a network and its layers.
    """
    start, items = task
    with _ONE_AT_A_TIME:
        device = _device_of_worker(options.device)
        backbone = _load(network, device)
        torch.set_num_threads(threads)
        decoders = max(1, options.decoders(device))
        decoded = decode_batches(items, backbone.transform, options.batch_size, 0, decoders, views=options.views)
        return [
            replace(
                batch,
                rows={layer: _converted(rows, dtype) for layer, rows in batch.rows.items()},
                positions=[start + position for position in batch.positions],
                failures=[(start + position, reason) for position, reason in batch.failures],
            )
            for batch in pass_through(backbone, device, decoded)
        ]


def _converted(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Half the traffic; rows that the store will refuse travel as they are, so that its writer can say why."""
    converted = np.empty(values.shape, "<" + dtype)
    convert_into(converted, values)
    return values if first_non_finite_row(converted) is not None else converted


@lru_cache(maxsize=1)
def _load(network: str, device: torch.device) -> Backbone:
    record, layers = json.loads(network)
    try:
        backbone = load_recorded(record, layers=layers)
    except ActstoreError as error:
        raise InvalidInputError(
            f"worker {worker_name()} cannot load the backbone: {error}; give it the same file at the same path"
        ) from error
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
