"""20-way recognition of mini-ImageNet's photos through efficientnet-lite0, and known against unknown categories.

The network was trained on all of these categories, so this says how far a classifier of one's own photos gets with few
of them, not how well a network knows what it never saw. Photos are those of $ACTSTORE_DATA, 84 pixels wide. Everything
that was chosen (centre, sharpness, prior) was chosen on the 80 other categories: `--prior` prints what the prior is.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from actstore.backbones.loading import load_backbone
from actstore.compute.measure import Result
from actstore.extraction.recorded_network import activations_of
from actstore.images.opening import find_images
from predictor.classifier.classifier import Classifier
from predictor.protocol.outcome import auroc
from tests.bench.common import ROOT, report

DATA = Path(os.environ.get("ACTSTORE_DATA", ROOT.parent / "shared" / "data"))
PER_CLASS, DRAWS, QUERIES = 32, 30, 20


def main(*arguments: str) -> None:
    if not (DATA / "miniimagenet.tar").exists():
        print(f"skipped: no {DATA / 'miniimagenet.tar'}; set ACTSTORE_DATA")
        return
    split = json.loads((DATA / "miniimagenet-split.json").read_text())
    if "--prior" in arguments:
        print_prior(activations(split["base"]))
        return
    rows = activations(split["novel"])  # (20, PER_CLASS, dim)
    results = []
    for shots in (1, 5):
        everything = [draw(rows, 20, shots, number) for number in range(DRAWS)]
        half = [draw(rows, 10, shots, number) for number in range(DRAWS)]
        name = f"efficientnet-lite0, {shots} shot{'s' * (shots > 1)}"
        results += [
            Result(f"{name}, 20-way top-1", 100 * mean(everything, "top1"), "%"),
            Result(f"{name}, 10 known and 10 unknown categories, AUROC", mean(half, "auroc"), ""),
            Result(f"{name}, known photos accepted", 100 * mean(half, "accepted"), "%"),
            Result(f"{name}, unknown photos refused", 100 * mean(half, "refused"), "%"),
        ]
    report("photos-unknown", results, ["AUROC >= 0.85 at 5 shots with half of the categories unknown"])


def activations(names: list[str]) -> Tensor:
    """(categories, PER_CLASS, dim), kept beside other temporary files: extraction takes minutes."""
    backbone = load_backbone("efficientnet-lite0")
    kept = Path(tempfile.gettempdir()) / f"photos-unknown-{str(backbone.weights_sha256)[:12]}-{len(names)}.npy"
    if not kept.exists():
        items = find_images(DATA / "miniimagenet.tar")["train"].items
        chosen = [item for name in names for item in [one for one in items if one.label == name][:PER_CLASS]]
        found, _, failures = activations_of(backbone, chosen, torch.device("cpu"))
        assert not failures
        np.save(kept, found.reshape(len(names), PER_CLASS, -1).numpy())
    return torch.from_numpy(np.load(kept))


def draw(rows: Tensor, known: int, shots: int, number: int) -> dict[str, float]:
    """A classifier of `known` random categories, asked about others of their photos and about all other categories."""
    random = np.random.default_rng([number, shots, known])
    order = random.permutation(len(rows))
    places = [random.permutation(PER_CLASS)[: shots + QUERIES] for _ in order]
    learner = Classifier.alone(rows.shape[2])
    learner.adapt_all(
        {str(category): rows[category, at[:shots]] for category, at in zip(order[:known], places, strict=False)}
    )
    asked = torch.stack([rows[category, at[shots:]] for category, at in zip(order, places, strict=True)])
    queries, strange = asked[:known].flatten(0, 1), asked[known:].flatten(0, 1)
    predicted = [line[0][0] for line in learner.predict(queries, top=1)]
    truth = [str(category) for category in order[:known] for _ in range(asked.shape[1])]
    found = {"top1": float(np.mean([one == other for one, other in zip(predicted, truth, strict=True)]))}
    if len(strange):
        found["auroc"] = auroc(learner.familiarity(queries).numpy(), learner.familiarity(strange).numpy())
        found["accepted"] = float(learner.is_known(queries).float().mean())
        found["refused"] = float((~learner.is_known(strange)).float().mean())
    return found


def mean(draws: list[dict[str, float]], name: str) -> float:
    return float(np.mean([one[name] for one in draws]))


def print_prior(rows: Tensor) -> None:
    """Shots, and of held-out photos' familiarity among 10 categories the mean and the spread below it."""
    for shots in (1, 2, 3, 5, 10):
        found = []
        for number in range(DRAWS):
            random = np.random.default_rng([number, shots])
            learner, fresh = Classifier.alone(rows.shape[2]), []
            for category in random.permutation(len(rows))[:10]:
                at = random.permutation(PER_CLASS)
                learner.adapt(str(category), rows[category, at[:shots]])
                fresh.append(rows[category, at[shots : shots + QUERIES]])
            found.append(learner.familiarity(torch.cat(fresh)))
        values = torch.cat(found)
        print(f"{shots}: ({values.mean():.3f}, {(values.mean() - values.quantile(0.05)) / 1.645:.3f})")


if __name__ == "__main__":
    main(*sys.argv[1:])
