"""`actstore.build`: images become a store in one call, by a network that is chosen where none is named."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from actstore.backbones.loading import Backbone, as_backbone, fetch_missing, load_backbone, stated_backbone
from actstore.backbones.network import IMAGENET, VIEWS, PixelFunction, Transform
from actstore.backbones.weights import FETCHED, Choice, default_backbone
from actstore.compute.tensors import reuse_freed_memory
from actstore.errors import InvalidInputError
from actstore.extraction.build import build as build_store
from actstore.extraction.forward import BuildOptions
from actstore.images.image_set import classes_train_lacks, lacks_text
from actstore.images.opening import open_images
from actstore.progress import SplitBars, note
from actstore.spec import Json
from actstore.storage.place import AnyPlace, Place, parse_place
from actstore.store import ActivationStore, open

if TYPE_CHECKING:
    from actstore.compute.cluster import Cluster


def build(
    images: str | PathLike[str],
    store: AnyPlace | None = None,
    *,
    backbone: str | Backbone | nn.Module | None = None,
    transform: Transform | PixelFunction | None = None,
    weights: str | PathLike[str] | None = None,
    pretrained: bool = False,
    offline: bool = False,
    random_weights: bool = False,
    layers: Sequence[str] = (),
    device: str = "auto",
    batch_size: int = 32,
    workers: int | None = None,
    views: int = 1,
    on_error: Literal["skip", "fail"] = "skip",
    ground_truth: str | PathLike[str] | None = None,
    synsets: str | PathLike[str] | None = None,
    restart: bool = False,
    trained_on: Sequence[str] | None = None,
    cluster: Cluster | None = None,
    progress: bool | None = None,
    **layout: Any,
) -> ActivationStore:
    """Run a network over images and write a store in which every image is a row.

    An interrupted build goes on with the same call, and with the network that the store was begun with.

    Args:
        images: folders of classes, with or without train/ and val/; the layouts of ILSVRC and Tiny-ImageNet; a .tar of
            class folders; a .csv or .parquet with columns path and label; or glyphs:CLASSESxTRAINxVAL, which are
            drawn.
        store: where the store goes; by default the name of images with .zarr, in the current folder.
        backbone: a name such as "resnet50", "efficientnet-lite0", "timm:NAME" or "package.module:factory", or a torch
            module. By default resnet50 where its weights are at hand or can be fetched, else efficientnet-lite0, which
            is installed with actstore.
        transform: for a torch module: a function from a PIL image in RGB to a tensor (3, side, side).
        weights: a .pth or .safetensors file.
        pretrained: fetch the published weights of the named backbone.
        offline: fetch nothing.
        random_weights: use an untrained network, for trying things out.
        layers: names of modules to read instead of the pooled output; each becomes a split.
        device: "cpu", "cuda", "cuda:1" or "auto".
        batch_size: images that go through the network at once.
        workers: processes that decode images.
        views: 1; 2 averages an image and its mirror image; 10 the centre, the four corners and their mirror images.
        on_error: "skip" leaves images out that cannot be read and lists them in the store; "fail" stops.
        ground_truth: the labels of a flat val folder of ILSVRC.
        synsets: the WNIDs in the order of these labels.
        restart: drop the rows of an interrupted build.
        trained_on: the classes that the network has seen in its training.
        cluster: the workers of this cluster run the network.
        progress: None shows a bar on a terminal and in a notebook, False none, True also prints lines into a log.
        **layout: `dtype`, `chunk_rows`, `codec` and `shard_inner_rows` of a new store; see `create`.

    Returns:
        The store.

    Raises:
        InvalidInputError: there are no images, or the network or its weights are not found.
        IncompleteError: the store holds an interrupted build of other images or of another network.

    Examples:
        >>> made = actstore.build("glyphs:2x3x1", backbone="small", random_weights=True, workers=0)
        >>> {name: len(made[name]) for name in made}
        {'train': 6, 'val': 2}
    """
    _require_choice(backbone, pretrained, offline)
    if views not in VIEWS:
        raise InvalidInputError(f"views must be one of {', '.join(map(str, VIEWS))}, got {views}")
    reuse_freed_memory()
    source = str(images)
    sets = open_images(source, _path(ground_truth), _path(synsets))
    for split, names in classes_train_lacks({name: image_set.classes for name, image_set in sets.items()}).items():
        note(f"WARNING: {lacks_text(split, names)}", progress)
    target, file = parse_place(default_store(source) if store is None else store), _path(weights)
    facts: dict[str, Json] = {}
    if isinstance(backbone, Backbone):
        network = backbone
    elif isinstance(backbone, nn.Module):
        network = as_backbone(backbone, transform or IMAGENET, layers)
    else:
        network, facts = _load(target, backbone, file, layers, random_weights, pretrained, offline, progress)
    if trained_on is not None and network.trained_classes is not None:
        raise InvalidInputError(f"{network.name} says itself which classes it was trained on; leave trained_on out")
    written = None if file is None else str(file.resolve())
    options = BuildOptions(
        device, batch_size, workers, on_error, restart, written, layout, random_weights, facts, views=views
    )
    with SplitBars("build", "images", progress) as bars:
        made = build_store(sets, source, target, network, options, bars, cluster)
    if trained_on is not None or random_weights:
        made.add_provenance(trained_classes=list(trained_on or []))
    return made


def _require_choice(backbone: object, pretrained: bool, offline: bool) -> None:
    if pretrained and backbone is None:
        raise InvalidInputError("--pretrained belongs to --backbone: name the network whose weights are to be fetched")
    if pretrained and offline:
        raise InvalidInputError("--pretrained fetches weights and --offline forbids it; choose one")


def load_network(
    backbone: str | None = None,
    weights: str | PathLike[str] | None = None,
    *,
    pretrained: bool = False,
    offline: bool = False,
    progress: bool | None = None,
) -> Backbone:
    """The network asked for, else the one that a file of weights names, else a default, which is said on stderr."""
    _require_choice(backbone, pretrained, offline)
    file = _path(weights)
    name = backbone or (stated_backbone(file) if file is not None else None)
    if name is None and file is not None:
        raise InvalidInputError(f"{file} does not say of which network it is; name that with --backbone")
    name = name or choose_network(offline, progress).name
    _fetch_if_asked(name, pretrained, progress)
    return load_backbone(name, file, pretrained=pretrained)


def choose_network(offline: bool = False, progress: bool | None = None) -> Choice:
    """The network of a call that names none; a line on stderr says which and why."""
    choice = default_backbone(offline, progress)
    note(f"network: {choice.name}, as {choice.reason}; choose another with --backbone or --weights", progress)
    return choice


def _load(
    target: Place, backbone: str | None, weights: Path | None, layers: Sequence[str], random_weights: bool,
    pretrained: bool, offline: bool, progress: bool | None,
) -> tuple[Backbone, dict[str, Json]]:  # fmt: skip
    """The network asked for, else that of the store as far as it is there, else a default; and what the store is to
    keep about the choice."""
    if backbone is not None or weights is not None or random_weights:
        name = backbone or (stated_backbone(weights) if weights is not None else None) or "resnet50"
        _fetch_if_asked(name, pretrained, progress)
        return load_backbone(name, weights, layers, random_weights=random_weights, pretrained=pretrained), {}
    known = open(target).spec.provenance if (target / "zarr.json").exists() else {}
    if known.get("backbone"):
        name, sha256 = known["backbone"], known["weights_sha256"]
        if ":" in name:  # code of others, which a store alone is no reason to run
            raise InvalidInputError(f"{target} was begun with {name}; name it with --backbone to go on")
        network = load_backbone(name, None, layers, expected_sha256=sha256)
        if network.weights_sha256 != sha256:
            raise InvalidInputError(
                f"{target} was begun with other weights of {name} than those at hand; name them with --weights"
            )
        return network, {}
    choice = choose_network(offline, progress)
    return load_backbone(choice.name, None, layers), {"network_chosen": choice.reason}


def _fetch_if_asked(backbone: str, pretrained: bool, progress: bool | None) -> None:
    """Weights of our own networks that are not at hand, with a bar."""
    if pretrained and backbone in FETCHED:
        fetch_missing(backbone, progress)


def default_store(images: str) -> Path:
    """imagenet/ -> imagenet.zarr, mini.tar -> mini.zarr; glyphs:10x5x2 -> glyphs.zarr"""
    name = Path(images.split(":")[0]).resolve().name
    return Path(name.split(".tar")[0].removesuffix(".csv").removesuffix(".parquet") + ".zarr")


def _path(value: str | PathLike[str] | None) -> Path | None:
    return None if value is None else Path(value)
