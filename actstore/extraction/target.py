"""The store a build writes to, and what must be the same for one to go on in it: images, network, transform."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from actstore.backbones.loading import Backbone
from actstore.creation import create
from actstore.errors import InvalidInputError
from actstore.images.image_set import ImageSet, Loadable
from actstore.spec import Json
from actstore.storage.place import Place
from actstore.store import ActivationStore, open


def open_target(
    path: Place,
    sets: Mapping[str, ImageSet[Loadable]],
    source: str,
    backbone: Backbone,
    layout: Mapping[str, Any],
    views: int = 1,
    facts: Mapping[str, Json] = MappingProxyType({}),
) -> ActivationStore:
    """layout: dtype, chunk_rows, codec, … of a new store. facts: which it keeps beside its network."""
    classes = sorted({name for images in sets.values() for name in images.classes})
    layers = list(backbone.layers)
    if (path / "zarr.json").exists():
        store = open(path)
        if store.dim != backbone.layers[layers[0]]:
            raise InvalidInputError(
                f"{path} holds activations of dim {store.dim}, {backbone.name} gives {backbone.layers[layers[0]]}; "
                "choose another store"
            )
        if (before := store.spec.provenance.get("views", 1)) != views:
            raise InvalidInputError(
                f"{path} holds activations of {before} view(s) of each image, asked for were {views}; "
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
        **_rare_facts(backbone, views),
        **facts,
    }
    return create(path, classes=classes, dim=backbone.layers[layers[0]], provenance=provenance, rows=longest, **layout)


def begun_network(path: Place) -> tuple[str, str] | None:
    """Backbone and sha256 of the weights of a store that is there already, by whatever command it was begun."""
    if not (path / "zarr.json").exists():
        return None
    known = open(path).spec.provenance
    return (known["backbone"], known["weights_sha256"]) if known.get("backbone") else None


def layer_split(split: str, layer: str, layers: Sequence[str]) -> str:
    return split if layer == layers[0] else f"{split}.{layer}"


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
