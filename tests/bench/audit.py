"""`actstore audit` on mini-ImageNet with planted faults: seconds, what is found, and wrong labels beside cleanlab.

python -m tests.bench.audit [--only features,photos] [--per-class 30]

features: 50,000 x 512 activations of $ACTSTORE_DATA, 40,000 as train and 10,000 as val; 100 rows of val become
copies of rows of train, and 500 rows of both get a wrong label. How labels are scored was chosen on images of train,
so the figures are given for val alone too. photos: 1,600 photos of 50 classes through EfficientNet-Lite 0, and 100 of
them once more in test, as JPEG of other quality; how near copies are told was chosen on photos of the other classes.
"""

from __future__ import annotations

import argparse
import io
import resource
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import actstore as library
from actstore.analysis.neighbours import find_neighbours
from actstore.audit import Audit, kept_audit
from actstore.audit.outcome import Kind
from actstore.compute.process import Result
from actstore.images.image_set import ImageItem, read_bytes
from actstore.images.opening import SplitImages, find_images
from tests.bench.common import OUT, actstore, report
from tests.conftest import REAL_DATA

COPIES, WRONG, K, SEED = 100, 500, 10, 2026
Pair = tuple[str, int, str, int]  # a row, and the one that it is a copy of
QUALITIES = (95, 85, 60, 50, 40)  # of the re-encoded photos; mini-ImageNet's own is 75


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="features,photos")
    parser.add_argument("--per-class", type=int, default=30)
    given = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(dir=OUT) as folder:  # nothing made of these images stays
        if "features" in given.only:
            results += features(Path(folder))
        if "photos" in given.only:
            results += photos(Path(folder), given.per_class)
    report("audit", results, ["50,000 x 512 within 90 s", "average precision at least cleanlab's"])


def features(folder: Path) -> list[Result]:
    """Copies and wrong labels among activations."""
    random = np.random.default_rng(SEED)
    with np.load(REAL_DATA / "miniimagenet-activations.npz") as data:
        train, labels = data["train"], data["train_labels"].astype(np.int64)
        val, val_labels = data["val"], data["val_labels"].astype(np.int64)
        names = [str(name) for name in data["classes"]]
    some = np.sort(np.concatenate([np.flatnonzero(labels == label)[:400] for label in range(len(names))]))
    train, labels = train[some], labels[some]
    copies, origins = random.choice(len(val), COPIES, replace=False), random.choice(len(train), COPIES, replace=False)
    val[copies], val_labels[copies] = train[origins], labels[origins]
    given = np.concatenate([labels, val_labels])
    wrong = random.choice(np.setdiff1d(np.arange(len(given)), len(train) + copies), WRONG, replace=False)
    given[wrong] = (given[wrong] + random.integers(1, len(names), WRONG)) % len(names)
    parts = {"train": (train, given[: len(train)]), "val": (val, given[len(train) :])}
    store = library.from_arrays(folder / "mini.zarr", parts, classes=names)
    before = children_seconds()
    seconds, peak, _ = actstore("audit", folder / "mini.zarr", "--json")
    audit = kept_audit(store)
    assert audit is not None
    results = [
        Result(f"audit of {len(given):,} x {store.dim}", seconds, "s"),
        Result("audit, processor time", children_seconds() - before, "s"),  # says more on a busy machine
        Result("audit, peak memory", peak / 1e9, "GB"),
    ]
    planted = {("val", int(row), "train", int(origin)) for row, origin in zip(copies, origins, strict=True)}
    results += found_pairs("exact copies", pairs_of(audit, "copy"), planted)
    values = {"train": train, "val": val}
    others = [values[a][b].tobytes() == values[c][d].tobytes() for a, b, c, d in pairs_of(audit, "copy") - planted]
    print(f"{len(others)} copies that nobody planted, {sum(others)} of them the same to the bit; {audit.summary()}")
    is_wrong = np.zeros(len(given), bool)
    is_wrong[wrong] = True
    return [*results, *label_results(store, audit, given, is_wrong)]


def children_seconds() -> float:
    """Processor time of the child processes so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def pairs_of(audit: Audit, *kinds: Kind) -> set[Pair]:
    found = [finding for kind in kinds for finding in audit.of_kind(kind)]
    return {(one.split, one.row, one.other_split, one.other_row) for one in found}


def found_pairs(what: str, found: set[Pair], planted: set[Pair]) -> list[Result]:
    """Recall and precision; pairs that nobody planted may be true ones of the data set, and are listed."""
    hits = len(found & planted)
    return [
        Result(f"{what}: recall of {len(planted)}", hits / len(planted), ""),
        Result(f"{what}: planted ones among {len(found)} pairs found", hits / max(len(found), 1), ""),
    ]


def label_results(
    store: library.ActivationStore, audit: Audit, labels: NDArray[np.int64], is_wrong: NDArray[np.bool_]
) -> list[Result]:
    splits = [store["train"], store["val"]]
    is_zero = np.zeros(len(labels), bool)
    with tempfile.TemporaryDirectory() as blocks:
        near = find_neighbours(splits, is_zero, K, Path(blocks), "bench")
    theirs = dict(cleanlab_scores(labels, near.scores, near.places))
    ours = np.concatenate([audit.label_scores[split.name] for split in splits])
    suspects = [one.row + (one.split == "val") * len(splits[0]) for one in audit.of_kind("suspect-label")]
    results = []
    for what, part in (("all rows", slice(None)), ("val alone", slice(len(splits[0]), None))):
        peers = {name: average_precision(is_wrong[part], -scores[part]) for name, scores in theirs.items()}
        best = max(peers, key=lambda name: peers[name])
        print(f"cleanlab, {what}: " + ", ".join(f"{name} {value:.3f}" for name, value in peers.items()))
        own = average_precision(is_wrong[part], -ours[part])
        name = f"wrong labels, average precision, {what} ({np.count_nonzero(is_wrong[part])} planted)"
        results.append(Result(name, own, "", f"cleanlab {best}", peers[best], own / peers[best]))
    share = float(is_wrong[suspects].mean()) if suspects else 0.0
    return [
        *results,
        Result(f"wrong labels among the {len(suspects)} named suspect", share, ""),
        Result("named suspect of the wrong labels", float(is_wrong[suspects].sum() / WRONG), ""),
    ]


def average_precision(truth: NDArray[np.bool_], scores: NDArray[np.floating]) -> float:
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(truth, scores))


def cleanlab_scores(
    labels: NDArray[np.int64], scores: NDArray[np.float32], places: NDArray[np.int64]
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Label quality from votes of the same neighbours, none of them the row itself, as Datalab makes them of features
    (each counts the same), and weighted by similarity; by every one of cleanlab's scores."""
    from cleanlab.classification import CleanLearning
    from cleanlab.rank import get_label_quality_scores

    rows, classes = np.arange(len(labels))[:, None], int(labels.max()) + 1
    for kind, weights in (("votes", np.ones_like(scores)), ("weighted votes", np.exp(20 * (scores - scores[:, :1])))):
        votes = np.zeros((len(labels), classes))
        np.add.at(votes, (rows, labels[places]), weights)
        votes /= votes.sum(axis=1, keepdims=True)
        for method in ("self_confidence", "normalized_margin", "confidence_weighted_entropy"):
            yield f"{kind}, {method}", get_label_quality_scores(labels, votes, method=method)
            if method != "confidence_weighted_entropy":
                adjusted = get_label_quality_scores(labels, votes, method=method, adjust_pred_probs=True)
                yield f"{kind}, {method}, adjusted", adjusted
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quality = CleanLearning().find_label_issues(labels=labels, pred_probs=votes)["label_quality"]
        yield f"{kind}, Datalab", np.asarray(quality, np.float64)


def photos(folder: Path, per_class: int) -> list[Result]:
    """Photos of the second 50 classes, written as folders; COPIES of train once more in test, as other JPEGs."""
    items = find_images(REAL_DATA / "miniimagenet.tar")["train"].items
    by_class = [(label, list(group)) for label, group in groupby(items, lambda item: item.label)][50:]
    random = np.random.default_rng(SEED)
    for label, group in by_class:
        write(folder / "photos/train" / str(label), group[:per_class])
        write(folder / "photos/test" / str(label), group[per_class : per_class + 2])
    chosen = [group[place] for _, group in by_class for place in random.permutation(per_class)[:2]]
    for number, item in enumerate(chosen[:COPIES]):
        quality = QUALITIES[number % len(QUALITIES)]
        encoded = io.BytesIO()
        Image.open(io.BytesIO(read_bytes(item))).convert("RGB").save(encoded, "JPEG", quality=quality)
        (folder / f"photos/test/{item.label}/again{quality}-{Path(item.id).name}").write_bytes(encoded.getvalue())
    actstore("build", folder / "photos", folder / "photos.zarr", "--backbone", "efficientnet-lite0", "--json")
    actstore("audit", folder / "photos.zarr", "--json", "--sheet", folder / "photos.html")
    store = library.open(folder / "photos.zarr")
    audit = kept_audit(store)
    assert audit is not None
    print(f"photos: {audit.summary()}, {audit.measured}")
    return [*photo_results(store, audit), *others(store, audit)]


def write(folder: Path, items: Sequence[ImageItem]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for item in items:
        (folder / Path(item.id).name).write_bytes(read_bytes(item))


def photo_results(store: library.ActivationStore, audit: Audit) -> list[Result]:
    train, test = store["train"], store["test"]
    row_of = {Path(train.ids[row]).name: row for row in range(len(train))}
    planted: dict[Pair, int] = {}
    for row in range(len(test)):
        name = Path(test.ids[row]).name
        if name.startswith("again"):
            quality, _, origin = name.removeprefix("again").partition("-")
            planted["test", row, "train", row_of[origin]] = int(quality)
    found = pairs_of(audit, "copy", "near-copy")
    for quality in QUALITIES:
        mine = {pair for pair, one in planted.items() if one == quality}
        print(f"re-encoded at quality {quality}: {len(mine & found)} of {len(mine)} found")
    return found_pairs(f"re-encoded photos among {len(train) + len(test):,}", found, set(planted))


def others(store: library.ActivationStore, audit: Audit) -> list[Result]:
    """Pairs found that were not planted: alike by their pixels, 16 x 16, or only by the network?"""
    images = {name: SplitImages(store[name]) for name in store.splits}
    alike = 0
    unplanted = [pair for pair in pairs_of(audit, "copy", "near-copy") if "again" not in store[pair[0]].ids[pair[1]]]
    for split, row, other, other_row in unplanted:
        small = [images[split].thumbnail(row, 16), images[other].thumbnail(other_row, 16)]
        correlation = float(np.corrcoef(*(np.asarray(image, np.float64).ravel() for image in small))[0, 1])
        alike += correlation > 0.95
        names = f"{store[split].ids[row]}, {store[other].ids[other_row]}"
        print(f"not planted: {names}, pixels correlate {correlation:.2f}")
    return [Result(f"of the {len(unplanted)} pairs not planted, alike by pixels", alike, "pairs")]


if __name__ == "__main__":
    main()
