"""Images -> backbone -> store: every readable image becomes one row, in the order of its source, with its size and date
as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from actstore.backbones.loading import Backbone
from actstore.compute.device import parse_device
from actstore.errors import InvalidInputError, UnreadableImageError
from actstore.extraction.cluster_build import extract_on_cluster, recipe_of
from actstore.extraction.forward import ExtractedBatch, ExtractionOptions, Wanted, columns_of, extract_here, move_to
from actstore.extraction.target import is_finished, layer_split, open_target, origin_of
from actstore.images.image_set import ImageSet, Loadable
from actstore.spec import Json
from actstore.storage.place import AnyPlace, parse_place
from actstore.store import ActivationStore
from actstore.writing.split_writer import SplitWriter

if TYPE_CHECKING:
    from actstore.parallel.cluster import Cluster

Progress = Callable[[str, int, int], None]  # split, images done, images in all
Extraction = Callable[[Wanted], Iterator[ExtractedBatch]]


@dataclass(frozen=True)
class BuildOptions(ExtractionOptions):
    on_error: Literal["skip", "fail"] = "skip"
    restart: bool = False
    weights: str | None = None  # the file the backbone came from, so that a repair can load it again
    layout: Mapping[str, Any] = field(default_factory=dict)  # dtype, chunk_rows, codec, … of a new store
    random_weights: bool = False  # how the workers of a cluster are to load the backbone
    facts: Mapping[str, Json] = field(default_factory=dict)  # which a new store keeps beside its network


def build(
    sets: Mapping[str, ImageSet[Loadable]],
    source: str,
    store: AnyPlace,
    backbone: Backbone,
    options: BuildOptions = BuildOptions(),  # noqa: B008 - frozen
    progress: Progress | None = None,
    cluster: Cluster | None = None,
) -> ActivationStore:
    """Extract every split; what an interrupted build has on disk is kept, finished splits are left alone.

    A backbone of several layers fills a split each: `train` for the first, `train.LAYER` for the others.
    cluster: its workers decode and run the backbone, this process alone writes; the bytes are the same.
    """
    extract = _extraction(backbone, options, cluster)
    target = open_target(parse_place(store), sets, source, backbone, options.layout, options.views, options.facts)
    for split, images in sets.items():
        if images.items:
            _build_split(target, split, images, source, backbone, options, extract, progress)
    return target


def _extraction(backbone: Backbone, options: BuildOptions, cluster: Cluster | None) -> Extraction:
    if cluster is not None:
        recipe = recipe_of(backbone, options.weights, options.random_weights)
        return partial(extract_on_cluster, cluster, recipe, options)
    device = parse_device(options.device)
    move_to(device, backbone)
    return partial(extract_here, backbone, device, options)


def _build_split(
    store: ActivationStore,
    split: str,
    images: ImageSet[Loadable],
    source: str,
    backbone: Backbone,
    options: BuildOptions,
    extract: Extraction,
    progress: Progress | None,
) -> None:
    names = {layer: layer_split(split, layer, list(backbone.layers)) for layer in backbone.layers}
    origin = {layer: origin_of(images, source, split, layer, backbone, options.views) for layer in names}
    unfinished = [layer for layer in names if not is_finished(store, names[layer], origin[layer])]
    if not unfinished:
        return
    with ExitStack() as stack:
        targets = []
        for layer in unfinished:
            writer = store.writer(
                names[layer], source=origin[layer], restart=options.restart, dim=backbone.layers[layer]
            )
            targets.append(_LayerTarget(layer, stack.enter_context(writer), images.items, store.classes))
        first = min(target.next_item for target in targets)
        wanted = Wanted(split, images.items, first, unfinished, store.spec.dtype, store.spec.chunk_rows)
        for batch in extract(wanted):
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

    def __init__(self, layer: str, writer: SplitWriter, items: Sequence[Loadable], classes: Sequence[str]) -> None:
        self.layer, self.writer, self._items = layer, writer, items
        self._label_of = {name: label for label, name in enumerate(classes)}
        self.next_item = 0
        if (last := writer.last_id()) is not None:  # unreadable images have no row, so only ids lead back to items
            self.next_item = next(position for position, item in enumerate(items) if item.id == last) + 1

    def append(self, batch: ExtractedBatch) -> None:
        keep = [index for index, position in enumerate(batch.positions) if position >= self.next_item]
        if keep:
            items = [self._items[batch.positions[index]] for index in keep]
            labels = [-1 if item.label is None else self._label_of[item.label] for item in items]
            columns = columns_of([batch.facts[index] for index in keep])
            self.writer.append(batch.rows[self.layer][keep], np.array(labels), [item.id for item in items], columns)

    def skipped(self) -> Iterator[list[str]]:
        """Items without a row, with the reason; found by walking along the ids that were written."""
        written = iter(self.writer.ids())
        expected = next(written, None)
        for item in self._items:
            if item.id == expected:
                expected = next(written, None)
            else:
                yield [item.id, _reason(item)]


def _reason(item: Loadable) -> str:
    try:
        item.load()
    except UnreadableImageError as error:
        return str(error)
    return "unreadable when it was built"
