"""Images -> backbone -> store: every readable image becomes one row, in the order of its source."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from actstore.backbones.loading import Backbone
from actstore.creation import create
from actstore.decoding import ImageBatch, decode_batches
from actstore.device import parse_device
from actstore.errors import InvalidInputError
from actstore.sources.decode import UnreadableImageError
from actstore.sources.items import ImageSet, Loadable
from actstore.spec import Json, default_chunk_rows
from actstore.store import ActivationStore, open
from actstore.writer import SplitWriter

Progress = Callable[[str, int, int], None]  # split, images done, images in all


@dataclass(frozen=True)
class BuildOptions:
    device: str = "auto"
    batch_size: int = 32
    workers: int = 1
    on_error: Literal["skip", "fail"] = "skip"
    restart: bool = False
    weights: str | None = None  # the file the backbone came from, so that a repair can load it again
    layout: Mapping[str, Any] = field(default_factory=dict)  # dtype, chunk_rows, codec, … of a new store
    views: int = 1  # of each image, averaged: its centre, or 10: five crops and their mirror images


def build(
    sets: Mapping[str, ImageSet[Loadable]],
    source: str,
    store: Path,
    backbone: Backbone,
    options: BuildOptions = BuildOptions(),  # noqa: B008 - frozen
    progress: Progress | None = None,
) -> ActivationStore:
    """Extract every split; what an interrupted build has on disk is kept, finished splits are left alone.

    A backbone of several layers fills a split each: `train` for the first, `train.LAYER` for the others.
    """
    device = parse_device(options.device)
    backbone.module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    target = _open_or_create(store, sets, source, backbone, options)
    for split, images in sets.items():
        if images.items:
            _build_split(target, split, images, source, backbone, options, device, progress)
    return target


def layer_split(split: str, layer: str, layers: Sequence[str]) -> str:
    return split if layer == layers[0] else f"{split}.{layer}"


def _build_split(
    store: ActivationStore,
    split: str,
    images: ImageSet[Loadable],
    source: str,
    backbone: Backbone,
    options: BuildOptions,
    device: torch.device,
    progress: Progress | None,
) -> None:
    names = {layer: layer_split(split, layer, list(backbone.layers)) for layer in backbone.layers}
    origin = {layer: _origin(images, source, split, layer, backbone, options.views) for layer in names}
    unfinished = [layer for layer in names if not _is_finished(store, names[layer], origin[layer])]
    if not unfinished:
        return
    with ExitStack() as stack:
        targets = []
        for layer in unfinished:
            writer = store.writer(
                names[layer], source=origin[layer], restart=options.restart, dim=backbone.layers[layer]
            )
            targets.append(_LayerTarget(layer, stack.enter_context(writer), images.items))
        first = min(target.next_item for target in targets)
        for batch in decode_batches(
            images.items, backbone.transform, options.batch_size, first, options.workers, device.type == "cuda",
            options.views,
        ):  # fmt: skip
            if batch.failures and options.on_error == "fail":
                raise InvalidInputError(f"{batch.failures[0][1]} (--on-error skip leaves such files out)")
            rows = forward(backbone, batch, device)
            for target in targets:
                target.append(batch, rows, store.classes)
            if progress is not None:
                progress(split, min(len(images.items), _end(batch)), len(images.items))
        for target in targets:
            skipped = [*map(list, images.skipped), *target.skipped()]
            target.writer.commit(skipped=skipped, batch_size=options.batch_size, weights=options.weights)


class _LayerTarget:
    """The writer of one layer, and which item it needs next."""

    def __init__(self, layer: str, writer: SplitWriter, items: Sequence[Loadable]) -> None:
        self.layer, self.writer, self._items = layer, writer, items
        self._label_of: dict[str, int] = {}
        self.next_item = self._after(writer.last_id())

    def _after(self, last_id: str | None) -> int:
        """Rows have no numbers of their own in the source, as unreadable images have none; ids lead back."""
        if last_id is None:
            return 0
        return next(position for position, item in enumerate(self._items) if item.id == last_id) + 1

    def append(self, batch: ImageBatch, rows: Mapping[str, torch.Tensor], classes: Sequence[str]) -> None:
        if not self._label_of:
            self._label_of = {name: label for label, name in enumerate(classes)}
        keep = [index for index, position in enumerate(batch.positions) if position >= self.next_item]
        if keep:
            items = [self._items[batch.positions[index]] for index in keep]
            labels = [-1 if item.label is None else self._label_of[item.label] for item in items]
            self.writer.append(rows[self.layer][keep].numpy(), np.array(labels), [item.id for item in items])

    def skipped(self) -> Iterator[list[str]]:
        """Items without a row, with the reason; found by walking along the ids that were written."""
        written = iter(self.writer.ids())
        expected = next(written, None)
        for item in self._items:
            if item.id == expected:
                expected = next(written, None)
            else:
                yield [item.id, _reason(item)]


def forward(backbone: Backbone, batch: ImageBatch, device: torch.device) -> dict[str, torch.Tensor]:
    """(n, dim) float32 per layer, on the CPU: the mean over the views, which pass one after the other."""
    if not batch.positions:
        return {layer: torch.empty(0, dim) for layer, dim in backbone.layers.items()}
    sums: dict[str, torch.Tensor] = {}
    for view in batch.images.unbind(1):
        images = view.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
        with torch.inference_mode(), torch.autocast(device.type, enabled=device.type == "cuda"):
            for layer, rows in backbone.activations(images).items():
                sums[layer] = rows.float() if layer not in sums else sums[layer] + rows.float()
    return {layer: (rows / batch.images.shape[1]).cpu() for layer, rows in sums.items()}


def _end(batch: ImageBatch) -> int:
    return max([*batch.positions, *(position for position, _ in batch.failures)]) + 1


def _reason(item: Loadable) -> str:
    try:
        item.load()
    except UnreadableImageError as error:
        return str(error)
    return "unreadable when it was built"


def _is_finished(store: ActivationStore, split: str, origin: Mapping[str, Json]) -> bool:
    done = store.splits.get(split)
    if done is None or not done.complete:
        return False
    before = done.sources[-1]
    changed = sorted(key for key in {*origin, "views"} if before.get(key) != origin.get(key))
    if changed:
        raise InvalidInputError(
            f"{store.path} has a finished split {split!r} of another build (differs in {', '.join(changed)}); "
            "choose another store"
        )
    store.remove_leftovers(split)
    return True


def _origin(
    images: ImageSet[Loadable], source: str, split: str, layer: str, backbone: Backbone, views: int
) -> dict[str, Json]:
    """What must be the same for a build to be resumed: images, network, layer, transform, views."""
    return {
        "kind": "images",
        "path": source,
        "split": split,
        "images": len(images.items),
        "listing": listing_hash(images),
        "backbone": backbone.name,
        "weights_sha256": backbone.weights_sha256,
        "layer": layer,
        "transform": backbone.transform.to_json(),
        **_views(views),
    }


def _views(views: int) -> dict[str, Json]:
    """Said only where there are several: stores of the usual single view stay as they were, byte for byte."""
    return {} if views == 1 else {"views": views}


def listing_hash(images: ImageSet[Loadable]) -> str:
    """Names the images of a split by their ids and labels; what is in the files is not read."""
    listing = hashlib.sha256()
    for item in images.items:
        listing.update(f"{item.id}\n{item.label}\n".encode())
    return listing.hexdigest()


def _open_or_create(
    path: Path, sets: Mapping[str, ImageSet[Loadable]], source: str, backbone: Backbone, options: BuildOptions
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
    dim, layout = backbone.layers[layers[0]], dict(options.layout)
    longest = max(len(images.items) for images in sets.values())
    if not layout.get("chunk_rows"):
        layout["chunk_rows"] = default_chunk_rows(dim, layout.get("dtype", "f2"), longest)
    trained = None if backbone.trained_classes is None else list(backbone.trained_classes)
    provenance = {
        "source": source,
        "backbone": backbone.name,
        "weights_sha256": backbone.weights_sha256,
        "layers": layers,
        "transform": backbone.transform.to_json(),
        "trained_classes": trained,
        **_views(options.views),
    }
    return create(path, classes=classes, dim=dim, provenance=provenance, **layout)
