"""One of every kind of file that the tools write, small, and how each is used or verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr

import actstore
from actstore.audit import audit_store, kept_audit
from actstore.backbones.construction import build_network
from actstore.backbones.loading import load_backbone
from actstore.backbones.weights import save_weights
from actstore.errors import DamagedError
from actstore.extraction.forward import load_recorded
from actstore.layout.metadata import ACTIVATIONS, FLAT_ARRAYS
from actstore.search.indexing import build_index
from actstore.search.plan import build_levels
from actstore.search.table import RowTable
from actstore.statistics import NAMES
from actstore.upkeep.verify import verify_store
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import load_classifier, save_classifier
from predictor.phi.network import Phi, PhiSpec
from predictor.protocol.calibration import Calibration, load_calibrations, save_calibrations
from predictor.protocol.category_split import CategorySplit, read_split
from predictor.protocol.head import Head, read_head, write_head
from predictor.training.loop import CHECKPOINT, read_training, write_training
from predictor.training.phi import TrainConfig, TrainOptions, run_phi_training
from predictor.training.trained_phi import load_phi

DIM, ROWS, CLASSES = 16, 1300, 5


@dataclass(frozen=True)
class Kind:
    """Files of one kind. use: reads them as the tools do, and returns what was read in a form to be compared."""

    name: str
    files: tuple[Path, ...]
    use: Callable[[], Any]


def make_kinds(folder: Path) -> list[Kind]:
    """All of them, in a folder of their own."""
    return [*_store_kinds(folder), *_run_kinds(folder), *_network_kinds(folder)]


def _store_kinds(folder: Path) -> Iterator[Kind]:
    place = folder / "x.zarr"
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, ROWS)
    values = random.random((ROWS, DIM), dtype=np.float32) + labels[:, None]
    columns = {"area": random.random(ROWS), "place": [f"at {row % 7}" for row in range(ROWS)]}
    rows = {"train": (values, labels, [f"c{label}/{row}.jpg" for row, label in enumerate(labels)], columns)}
    store = actstore.from_arrays(place, rows, classes=[f"c{n}" for n in range(CLASSES)], chunk_rows=512)
    train = store["train"]
    train.statistics()
    train.search(values[:2], 3)
    build_levels(RowTable(train))
    for kind in ("ivf", "ivf-sq", "hnsw", "pq"):
        build_index(train, kind, lists=None if kind == "hnsw" else 4, recall=0.5).save()
    audit_store(store)
    split = place / "train"
    found = {
        "chunk": split.glob("activations/c/*/*"),
        "ledger": [split / "activations/ledger.jsonl"],
        "labels": split.glob("labels/c/*"),
        "ids": split.glob("path_*/c/*"),
        "columns": [file for name in columns for file in split.glob(f"{name}*/c/*")],
        "metadata of the store": [place / "zarr.json"],
        "metadata of a split": [split / "zarr.json"],
        "metadata of arrays": split.glob("*/zarr.json"),
        "means": [file for name in NAMES for file in split.glob(f"{name}/c/**/*") if file.is_file()],
        **{
            f"index {kind}": (folder / "x.zarr.search/train").glob(f"{kind}.*")
            for kind in ("norms", "bounded", "ivf", "ivf-sq", "hnsw", "pq")
        },
        "audit": [folder / "x.zarr.audit/audit.safetensors"],
    }
    for name, files in found.items():
        yield Kind(name, tuple(sorted(files)), lambda: _verified(place))


def _verified(place: Path) -> Any:
    """What a store holds, if verify finds nothing."""
    store = actstore.open(place)
    if faults := verify_store(store):
        raise DamagedError("\n".join(map(str, faults)))
    train = store["train"]
    arrays = {name: zarr.open_array(train.path / name, mode="r") for name in (ACTIVATIONS, *FLAT_ARRAYS, *NAMES)}
    shapes = {name: (one.shape, one.dtype, one.chunks, str(one.fill_value)) for name, one in arrays.items()}
    statistics = [np.asarray(arrays[name][...]).tobytes() for name in NAMES]
    scores, found = train.search(train.take([3, 700]).astype(np.float32), 5)
    kept = (train.take(np.arange(len(train))).tobytes(), train.labels.tobytes(), list(train.ids))
    audit = kept_audit(store)
    told = None if audit is None else (audit.findings, audit.label_scores["train"].tobytes(), audit.measured)
    beside = [(name, values.tolist()) for name, values in train.columns.items()]
    return store.spec, store.splits, shapes, statistics, scores.tolist(), found.tolist(), kept, beside, told


def _run_kinds(folder: Path) -> Iterator[Kind]:
    run, split = folder / "run", folder / "split.json"
    categories = CategorySplit(("c0", "c1", "c2", "c3"), ("c4",))
    categories.save(split)
    train = actstore.open(folder / "x.zarr")["train"]
    run_phi_training(train, None, categories, TrainConfig(epochs=1, batches=2), run, TrainOptions("cpu"))
    save_calibrations(run, [Calibration(1, 0.25, 50.0, 40.0, "stand-ins", "max", curve={"biases": [0.0, 1.0]})])
    classifier = Classifier.from_means(Phi(PhiSpec("phi1", DIM)).eval(), ("a", "b"), torch.rand(2, DIM))
    classifier.adapt_all({"c": torch.rand(2, DIM)})
    save_classifier(folder / "classifier.safetensors", classifier)
    state = {"identity": {"method": "x"}, "state": {"step": 3, "seconds": 0.5}}
    write_training(folder / CHECKPOINT, {"w": torch.rand(4, 4)}, state)

    def phi() -> Any:
        found = load_phi(run)
        return _plain(found.phi.state_dict()), found.identity, found.categories

    def scores() -> Any:
        found = load_classifier(folder / "classifier.safetensors")
        return found.scores(torch.ones(1, DIM)).tolist(), found.categories, found.about, found.novel_bias

    def checkpoint() -> Any:
        tensors, text = read_training(folder / CHECKPOINT)
        return _plain(tensors), text

    yield Kind("phi", (run / "model.safetensors", run / "model.json"), phi)
    yield Kind("calibration", (run / "calibration.json",), lambda: load_calibrations(run))
    yield Kind("classifier", (folder / "classifier.safetensors",), scores)
    yield Kind("checkpoint of a training", (folder / CHECKPOINT, folder / "checkpoint.json"), checkpoint)
    yield Kind("category split", (split,), lambda: read_split(split))


def _network_kinds(folder: Path) -> Iterator[Kind]:
    weights, head = folder / "weights.safetensors", folder / "head.safetensors"
    plain = folder / "weights.pt"
    network = build_network("small", 2)
    save_weights(weights, network, "small", ("a", "b"))
    torch.save(network.state_dict(), plain)
    backbone = load_backbone("small", weights)
    record = {
        "backbone": "small",
        "weights_sha256": backbone.weights_sha256,
        "layer": "activations",
        "transform": backbone.transform.to_json(),
    }
    write_head(head, Head(torch.rand(3, DIM), torch.rand(3), ("a", "b", "c")))

    def recorded(path: Path) -> Callable[[], Any]:
        return lambda: load_recorded({**record, "weights": str(path)}).weights_sha256

    def rows() -> Any:
        found = read_head(head)
        return found.weight.tolist(), found.bias.tolist(), found.classes

    yield Kind("backbone weights", (weights,), recorded(weights))
    yield Kind("backbone weights with a recorded hash", (plain,), recorded(plain))
    yield Kind("head", (head,), rows)


def _plain(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in tensors.items()}
