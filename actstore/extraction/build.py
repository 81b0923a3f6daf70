"""Images -> backbone -> store: every readable image becomes one row, in the order of its source, with its size and date
as columns; and what must be the same for a build to go on in a store: images, network, transform."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from actstore.backbones.loading import Backbone
from actstore.compute.device import parse_device
from actstore.errors import InvalidInputError, UnreadableImageError
from actstore.extraction.cluster_build import extract_on_cluster
from actstore.extraction.forward import BuildOptions, ExtractedBatch, ImageRange, columns_of, extract_here, move_to
from actstore.images.image_set import ImageSet, Loadable
from actstore.progress import SplitProgress
from actstore.spec import Json
from actstore.storage.place import AnyPlace, Place, parse_place
from actstore.store import ActivationStore, create, open

if TYPE_CHECKING:
    from actstore.compute.cluster import Cluster
    from actstore.writing.split_writer import SplitWriter


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
    keys = {*origin, "views"}
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
        "listing": listing_hash(images),
        "backbone": backbone.name,
        "weights_sha256": backbone.weights_sha256,
        "layer": layer,
        "transform": backbone.transform.to_json(),
        **_rare_facts(backbone, views),
    }


def listing_hash(images: ImageSet[Loadable]) -> str:
    """Names the images of a split by their ids and labels; what is in the files is not read."""
    listing = hashlib.sha256()
    for item in images.items:
        listing.update(f"{item.id}\n{item.label}\n".encode())
    return listing.hexdigest()


def _rare_facts(backbone: Backbone, views: int) -> dict[str, Json]:
    """Recorded only where they apply: stores of one view and of weights at hand stay as they were, byte for byte."""
    return ({"pretrained": True} if backbone.pretrained else {}) | ({} if views == 1 else {"views": views})


Extraction = Callable[[ImageRange], Iterator[ExtractedBatch]]


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
        return partial(extract_on_cluster, cluster, backbone, options)
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
            writer = store.writer(
                names[layer], source=origin[layer], restart=options.restart, dim=backbone.layers[layer]
            )
            targets.append(_LayerTarget(layer, stack.enter_context(writer), images.items, store.classes))
        first = min(target.next_item for target in targets)
        wanted = ImageRange(split, images.items, first, unfinished, store.spec.dtype, store.spec.chunk_rows)
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
