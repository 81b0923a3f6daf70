"""Images through a network: decoded in batches, passed, as the activations of a list of images; and the network that
made a split, loaded again for new images or to make its rows once more, another one refused.

Batches have borders that never move: batch k holds items k * size to (k + 1) * size - 1 whichever items are wanted. A
network gives an image the very same activation only inside of the same batch, and resumed builds must end
byte-identical.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.backbones.construction import PUBLISHED
from actstore.backbones.loading import Backbone, load_backbone
from actstore.backbones.network import Transform
from actstore.backbones.weights import published_files
from actstore.compute.device import has_half, parse_device, sent_ahead
from actstore.errors import InvalidInputError, UnreadableImageError
from actstore.images.decode import ImageFacts
from actstore.images.image_set import ImageItem, Loadable
from actstore.images.opening import image_sources, open_images
from actstore.layout.columns import Column
from actstore.spec import Json
from actstore.split import Split
from actstore.tables.row_source import RowSource, Table
from actstore.writing.row_checks import parse_column

CPU = torch.device("cpu")
_NONE = torch.empty(0)


@dataclass(frozen=True)
class Batch:
    """images (n, views, 3, crop, crop), rows: layer -> (n, dim) of those that have passed a network, and facts, all of
    the items in `positions` (n,); failures: (position, reason) of the others."""

    positions: list[int]
    failures: list[tuple[int, str]]
    facts: list[ImageFacts]
    images: Tensor = _NONE
    rows: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The position after the last item, read or not."""
        return max([*self.positions, *(position for position, _ in self.failures)]) + 1


def columns_of(facts: Sequence[ImageFacts]) -> dict[str, Column]:
    """What a build knows of its images beside their activations, as columns of the store."""
    numbers = {name: [getattr(fact, name) for fact in facts] for name in ("width", "height", "bytes")}
    columns = {name: parse_column(name, values, "int") for name, values in numbers.items()}
    return {**columns, "date": parse_column("date", [fact.date for fact in facts], "date")}


def decode_batches(
    items: Sequence[Loadable], transform: Transform, size: int, first: int = 0, threads: int = 0, pin: bool = False,
    views: int = 1,
) -> Iterator[Batch]:  # fmt: skip
    """Batches in order, from the one that holds item `first` on. threads: that decode ahead. pin: into memory from
    which copies to a device run beside the host."""
    numbers = range(first // size, -(-len(items) // size))
    decode = partial(_decode, items, transform, size, pin, views)
    if not threads:
        yield from map(decode, numbers)
        return
    ahead: deque[Future[Batch]] = deque()
    pool = _decoders(threads)
    try:
        for number in numbers:
            ahead.append(pool.submit(decode, number))
            if len(ahead) > threads + 1:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _decode(items: Sequence[Loadable], transform: Transform, size: int, pin: bool, views: int, number: int) -> Batch:
    images, positions, failures, facts = [], [], [], []
    for position in range(number * size, min((number + 1) * size, len(items))):
        try:
            image, known = items[position].load_with_facts()
        except UnreadableImageError as error:
            failures.append((position, str(error)))
            continue
        images.append(transform.views(image, views))
        positions.append(position)
        facts.append(known)
    stacked = torch.stack(images) if images else torch.empty(0, views, transform.channels, *2 * [transform.crop])
    return Batch(positions, failures, facts, stacked.pin_memory() if pin else stacked)


def _decoders(threads: int) -> ThreadPoolExecutor:
    """Threads that leave torch's own threads to the network.

    All have done so before this returns, and the caller's setting, which MKL takes for all threads, comes last.
    """
    before, ready = torch.get_num_threads(), Barrier(threads + 1)

    def begin() -> None:
        torch.set_num_threads(1)
        with suppress(BrokenBarrierError):
            ready.wait()

    pool = ThreadPoolExecutor(threads, "decode", initializer=begin)
    try:
        for _ in range(threads):
            pool.submit(int)  # a thread starts with the first task that finds no idle one
        ready.wait()
    except BaseException:
        ready.abort()  # else those that have begun wait for ever
        pool.shutdown(cancel_futures=True)
        raise
    finally:
        torch.set_num_threads(before)
    return pool


def pass_through(backbone: Backbone, device: torch.device, decoded: Iterable[Batch]) -> Iterator[Batch]:
    """Batches with rows in the place of images; where the device has streams, one is sent while another is used."""

    def send(batch: Batch) -> Batch:
        return replace(batch, images=batch.images.to(device, non_blocking=True))

    for batch in sent_ahead(decoded, send, lambda batch: [batch.images], device):
        rows = {layer: values.numpy() for layer, values in forward(backbone, batch.images, device).items()}
        yield replace(batch, images=_NONE, rows=rows)


def forward(backbone: Backbone, images: Tensor, device: torch.device) -> dict[str, Tensor]:
    """(n, views, 3, height, width) -> (n, dim) float32 per layer, on the CPU: the mean over the views, which pass one
    after the other."""
    if not len(images):
        return {layer: torch.empty(0, dim) for layer, dim in backbone.layers.items()}
    sums: dict[str, Tensor] = {}
    for view in images.unbind(1):
        sent = view.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
        with torch.inference_mode(), torch.autocast(device.type, torch.float16, enabled=has_half(device)):
            for layer, rows in backbone.activations(sent).items():
                sums[layer] = rows.float() if layer not in sums else sums[layer] + rows.float()
    return {layer: (rows / images.shape[1]).cpu() for layer, rows in sums.items()}


def move_to(device: torch.device, backbone: Backbone) -> None:
    backbone.module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def activations_of(
    backbone: Backbone, items: Sequence[Loadable], device: torch.device, views: int = 1, batch_size: int = 32,
    on_batch: Callable[[int], object] | None = None,
) -> tuple[Tensor, list[int], list[tuple[int, str]]]:  # fmt: skip
    """(n, dim) of the readable images, their positions among the items, and (position, reason) of the others.

    views: of each image, averaged; as many as the store has. on_batch: is told how many images each batch had.
    """
    move_to(device, backbone)
    layer, dim = next(iter(backbone.layers.items()))
    rows, positions, failures = [torch.empty(0, dim)], [], []
    for batch in decode_batches(items, backbone.transform, batch_size, views=views):
        rows.append(forward(backbone, batch.images, device)[layer])
        positions += batch.positions
        failures += batch.failures
        if on_batch is not None:
            on_batch(len(batch.positions) + len(batch.failures))
    return torch.cat(rows), positions, failures


def embed_images(split: Split, images: Sequence[Path], weights: Path | None = None, device: str = "cpu") -> Tensor:
    """(n, dim) float32 activations of image files.

    weights: the file the backbone was loaded from, where the store does not say or it has moved; another is refused.
    """
    record = network_of(split)
    if not record:
        raise InvalidInputError(
            f"split {split.name!r} of {split.store_path} was not built from images, so it is not known which backbone "
            "made its rows; search by row or by vector"
        )
    items = [ImageItem(path.name, None, str(path.parent)) for path in images]
    rows, _, failures = activations_of(load_recorded(record, weights), items, parse_device(device), record["views"])
    if failures:
        raise InvalidInputError(failures[0][1])
    return rows


def network_of(split: Split) -> dict[str, Any]:
    """What a store knows about the network of a split; empty where rows were imported."""
    sources = image_sources(split)
    return recorded_network(sources[-1]) if sources else {}


def recorded_network(source: Mapping[str, Any]) -> dict[str, Any]:
    """The network that a build recorded in its split's source."""
    record = {key: source.get(key) for key in ("backbone", "weights", "weights_sha256", "layer", "transform")}
    pretrained = {"pretrained": True} if source.get("pretrained") else {}
    return record | pretrained | {"views": source.get("views", 1)}


def record_of(backbone: Backbone, weights: Path | None = None) -> dict[str, Any]:
    """The same of a network at hand, as `load_backbone(…, weights)` gave it."""
    source = {
        "backbone": backbone.name, "weights": None if weights is None else str(weights.absolute()),
        "weights_sha256": backbone.weights_sha256, "layer": next(iter(backbone.layers)),
        "transform": backbone.transform.to_json(), "pretrained": backbone.pretrained,
    }  # fmt: skip
    return recorded_network(source)


def load_recorded(
    record: Mapping[str, Any], weights: Path | None = None, layers: Sequence[str] | None = None
) -> Backbone:
    """record: as `network_of` gives it. weights: where the file is now; by default where it was. layers: by default
    the one that the record names."""
    if not record.get("backbone"):
        raise InvalidInputError(
            "images need the network their activations come from, but the store does not name one: its rows were "
            "imported; give activations instead, or build the store from images with `actstore build`"
        )
    path = weights or (None if record.get("weights") is None else Path(record["weights"]))
    if path is not None and not path.is_file():
        raise InvalidInputError(
            f"the weights of {record['backbone']} are not at {path}; say where with weights=… (--weights)"
        )
    if layers is None:
        layers = () if record["layer"] == "activations" else (record["layer"],)
    name = record["backbone"]
    ways: list[dict[str, Any]] = [{"random_weights": True}, {"expected_sha256": record["weights_sha256"]}]
    if path is not None or record.get("pretrained"):
        ways = [{"pretrained": path is None}]
    elif published_files(name, PUBLISHED.get(name, ())):  # then these are likelier than weights drawn from the seed
        ways.reverse()
    for way in ways:
        backbone = load_backbone(name, path, layers, **way)
        if backbone.weights_sha256 == record["weights_sha256"]:
            break
    else:
        raise InvalidInputError(
            f"the weights of {record['backbone']} in {path or 'the cache of torch'} are not those the activations were "
            f"made with (sha256 {str(backbone.weights_sha256)[:12]}…, expected {str(record['weights_sha256'])[:12]}…)"
        )
    backbone.transform = Transform.from_json(record["transform"])
    return backbone


def reopen_images(source: Mapping[str, Json], with_columns: bool) -> Table:
    """Labels, ids and activations as a build recorded them in its split's sources; columns take reading every file."""
    images = open_images(source["path"], val=source.get("val_share")).get(source["split"])
    if images is None or images.listing_hash() != source["listing"]:
        raise InvalidInputError(f"the images in {source['path']} are no longer those the split was built from")
    skipped = {name for name, _ in source["skipped"]}
    kept = [position for position, item in enumerate(images.items) if item.id not in skipped]
    items = [images.items[position] for position in kept]
    labels = np.array([item.label for item in items], dtype=object)
    rows = _rows_again(images.items, kept, source)
    columns = columns_of([item.load_with_facts()[1] for item in items]) if with_columns else {}
    return Table(rows, labels, [item.id for item in items], columns)


def _rows_again(items: Sequence[Loadable], kept: list[int], source: Mapping[str, Json]) -> RowSource:
    """Row i is the activation of item kept[i], computed in the same batch as in the build."""
    backbone = load_recorded(recorded_network(source))
    move_to(CPU, backbone)
    layer, size = source["layer"], source["batch_size"]

    def blocks(start: int, stop: int) -> Iterator[NDArray[Any]]:
        if start >= stop:
            return
        first, last = kept[start], kept[stop - 1]
        wanted_items = items[: (last // size + 1) * size]
        for batch in decode_batches(wanted_items, backbone.transform, size, first, views=source.get("views", 1)):
            wanted = [index for index, position in enumerate(batch.positions) if first <= position <= last]
            if wanted:
                yield forward(backbone, batch.images, CPU)[layer][wanted].numpy()

    return RowSource((len(kept), backbone.layers[layer]), np.dtype(np.float32), blocks)
