"""`actstore.build`: images become a store in one call, by a network that is chosen where none is named."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from actstore.backbones.loading import Backbone, as_backbone, load_backbone, stated_backbone
from actstore.backbones.network import IMAGENET, VIEWS, PixelFunction, Transform
from actstore.backbones.weights import Choice, default_backbone
from actstore.compute.tensors import reuse_freed_memory
from actstore.errors import InvalidInputError
from actstore.extraction.build import BuildOptions
from actstore.extraction.build import build as build_store
from actstore.images.image_set import classes_train_lacks, lacks_text
from actstore.images.opening import open_images
from actstore.images.split_names import layout_warnings
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
    val: float | None = None,
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
            class folders; a .csv or .parquet with columns path, label and, if there are several splits, split (else
            all is train); or glyphs:CLASSESxTRAINxVAL, which are drawn.
        store: where the store goes; by default the name of images with .zarr, in the current folder.
        backbone: a name such as "resnet50", "efficientnet-lite0", "timm:NAME" or "package.module:factory", or a torch
            module. By default resnet50 where its weights are at hand or can be fetched, else efficientnet-lite0, which
            is installed with actstore.
        transform: for a torch module: a function from a PIL image in RGB to a tensor (3, side, side). By default the
            short side becomes 256 pixels, the centre of 224 is cut out, and ImageNet's mean and deviation are applied.
        weights: a .pth or .safetensors file. A torch module has its weights: neither this nor the next three go with
            one.
        pretrained: fetch the published weights of the named backbone.
        offline: fetch nothing.
        random_weights: use an untrained network, for trying things out.
        layers: names of modules to read instead of the pooled output; each becomes a split.
        val: a share of each class that is held out of train and becomes the split val, such as 0.2; the same images
            are chosen each time, by their names. Copies of one image can be on both sides; `actstore audit` finds them.
        device: "cpu", "cuda", "cuda:1" or "auto".
        batch_size: images that go through the network at once.
        workers: threads that decode images.
        views: 1; 2 averages an image and its mirror image; 10 the centre, the four corners and their mirror images.
        on_error: "skip" leaves images out that cannot be read and lists them in the store; "fail" stops.
        ground_truth: the labels of a flat val folder of ILSVRC.
        synsets: the WNIDs in the order of these labels.
        restart: drop the rows of an interrupted build.
        trained_on: the classes that the network has seen in its training.
        cluster: the workers of this cluster run the network.
        progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.
        **layout: `dtype`, `chunk_rows`, `codec` and `shard_inner_rows` of a new store; see `create`.

    Returns:
        The store.

    Raises:
        InvalidInputError: there are no images, the network or its weights are not found, or an argument does not go
            with the kind of backbone.
        IncompleteError: the store holds an interrupted build of other images or of another network.

    Examples:
        >>> made = actstore.build("glyphs:2x3x1", backbone="small", random_weights=True, workers=0)
        >>> {name: len(made[name]) for name in made}
        {'train': 6, 'val': 2}
    """
    _require_choice(backbone, pretrained, offline)
    if isinstance(backbone, type):
        raise InvalidInputError(
            f"backbone is the class {backbone.__name__}; give a network of it: {backbone.__name__}()"
        )
    _refuse_unused(
        backbone, transform=transform is not None, layers=bool(layers), weights=weights is not None,
        pretrained=pretrained, offline=offline, random_weights=random_weights,
    )  # fmt: skip
    if views not in VIEWS:
        raise InvalidInputError(f"views must be one of {', '.join(map(str, VIEWS))}, got {views}")
    reuse_freed_memory()
    source = str(images).rstrip("/") or str(images)  # the same folder, however it was typed
    sets = open_images(source, _path(ground_truth), _path(synsets), val)
    if not any(image_set.classes for image_set in sets.values()):
        note(f"WARNING: no image of {source} has a label: classes are the names of folders, CLASS/*.jpg", progress)
    for split, names in classes_train_lacks({name: image_set.classes for name, image_set in sets.items()}).items():
        note(f"WARNING: {lacks_text(split, names)}", progress)
    for split, image_set in sets.items():
        ids = ((item.id, item.label) for item in image_set.items)
        for line in layout_warnings(split, ids, image_set.skipped):
            note(f"WARNING: {line}", progress)
    target, file = parse_place(default_store(source) if store is None else store), _path(weights)
    if val is not None:
        held = len(sets["val"].items)
        note(f"val: {held:,} images are held out of train, chosen by their names; copies of one image can be on both "
             f"sides, which `actstore audit {target}` finds", progress)  # fmt: skip
    facts: dict[str, Json] = {}
    if isinstance(backbone, Backbone):
        network = backbone
    elif isinstance(backbone, nn.Module):
        if transform is None:
            note("transform: none was given, so that images are resized to 256, cropped to 224 and normalised by "
                 "ImageNet's mean and deviation", progress)  # fmt: skip
        network = as_backbone(backbone, transform or IMAGENET, layers)
    else:
        network, facts = _load(target, backbone, file, layers, random_weights, pretrained, offline, progress)
    if trained_on is not None and network.trained_classes is not None:
        raise InvalidInputError(f"{network.name} says itself which classes it was trained on; leave trained_on out")
    written = None if file is None else str(file.resolve())
    options = BuildOptions(device, batch_size, workers, on_error, restart, written, layout, facts, views=views)
    with SplitBars("build", "images", progress) as bars:
        made = build_store(sets, source, target, network, options, bars, cluster)
    if trained_on is not None or random_weights:
        made.add_provenance(trained_classes=list(trained_on or []))
    return made


_OF_NAMES = ("weights", "pretrained", "offline", "random_weights")  # for networks that are named or chosen


def _refuse_unused(backbone: object, **given: bool) -> None:
    """given: the arguments that only some kinds of backbone use, and whether each was given."""
    unused: tuple[str, ...] = _OF_NAMES
    if isinstance(backbone, Backbone):
        kind, unused = "a Backbone", (*_OF_NAMES, "transform", "layers")
    elif isinstance(backbone, nn.Module):
        kind = "a torch module"
    else:
        kind, unused = "a network that is named or chosen", ("transform",)
    if names := [name for name in unused if given[name]]:
        raise InvalidInputError(f"leave out {', '.join(names)}: not used where backbone is {kind}")


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
        raise InvalidInputError(f"{file} does not say of which network it is; name that with backbone=… (--backbone)")
    name = name or choose_network(offline, progress).name
    return load_backbone(name, file, pretrained=pretrained, progress=progress)


def choose_network(offline: bool = False, progress: bool | None = None) -> Choice:
    """The network of a call that names none; a line on stderr says which and why."""
    choice = default_backbone(offline, progress)
    note(
        f"network: {choice.name}, as {choice.reason}; choose another with backbone=… or weights=… "
        "(--backbone, --weights)",
        progress,
    )
    return choice


def _load(
    target: Place, backbone: str | None, weights: Path | None, layers: Sequence[str], random_weights: bool,
    pretrained: bool, offline: bool, progress: bool | None,
) -> tuple[Backbone, dict[str, Json]]:  # fmt: skip
    """The network asked for, else that of the store as far as it is there, else a default; and what the store is to
    keep about the choice."""
    if backbone is not None or weights is not None or random_weights:
        name = backbone or (stated_backbone(weights) if weights is not None else None) or "resnet50"
        return load_backbone(
            name, weights, layers, random_weights=random_weights, pretrained=pretrained, progress=progress
        ), {}
    known = open(target).spec.provenance if (target / "zarr.json").exists() else {}
    if known.get("backbone"):
        name, sha256 = known["backbone"], known["weights_sha256"]
        if ":" in name:  # code of others, which a store alone is no reason to run
            raise InvalidInputError(f"{target} was begun with {name}; name it with backbone=… (--backbone) to go on")
        network = load_backbone(name, None, layers, expected_sha256=sha256)
        if network.weights_sha256 != sha256:
            raise InvalidInputError(
                f"{target} was begun with other weights of {name} than those at hand; name them with weights=… "
                "(--weights)"
            )
        return network, {}
    choice = choose_network(offline, progress)
    return load_backbone(choice.name, None, layers), {"network_chosen": choice.reason}


def default_store(images: str) -> Path:
    """imagenet/ -> imagenet.zarr, mini.tar -> mini.zarr; glyphs:10x5x2 -> glyphs.zarr"""
    name = Path(images.split(":")[0]).resolve().name
    return Path(name.split(".tar")[0].removesuffix(".csv").removesuffix(".parquet") + ".zarr")


def _path(value: str | PathLike[str] | None) -> Path | None:
    return None if value is None else Path(value)
