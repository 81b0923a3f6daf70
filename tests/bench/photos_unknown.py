"""Known and unknown photos through efficientnet-lite0: classifiers of ten categories, asked about others.

mini-ImageNet's photos ($ACTSTORE_DATA, 84 pixels wide, all of categories that the network was trained on) and the birds
of Caltech-UCSD Birds 200-2011 ($ACTSTORE_BIRDS, a folder with train/SPECIES/*.jpg). Everything that was chosen (centre,
profile, prior) was chosen on mini-ImageNet's 80 base categories and on every other bird species, from the first on;
measured are its 20 novel categories and the remaining species. `--prior` prints what the prior of unknown is.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.backbones.loading import Backbone, load_backbone
from actstore.compute.process import Result
from actstore.extraction.forward import activations_of
from actstore.images.opening import find_images
from predictor.classifier.classifier import Classifier
from predictor.classifier.starting import background_of
from predictor.protocol.evaluation import half_width
from predictor.protocol.outcome import auroc
from tests.bench.common import ROOT, report

DATA = Path(os.environ.get("ACTSTORE_DATA", ROOT.parent / "shared" / "data"))
BIRDS = Path(os.environ.get("ACTSTORE_BIRDS", ROOT.parent / "data" / "birds"))
PER_CLASS, DRAWS, WAY, SHOTS, ASKED = 24, 100, 10, 3, 10
STRANGERS = 3  # photos of each category that was not taught
BARS = [
    "mini-ImageNet: others refused >= 50%",
    "birds of other species refused >= 25%",
    "anything else refused by birds >= 95%",
    "known photos accepted: 95%",
]
Rows = Tensor  # (categories, PER_CLASS, dim)


def main(*arguments: str) -> None:
    if not (DATA / "miniimagenet.tar").exists():
        print(f"skipped: no {DATA / 'miniimagenet.tar'}; set ACTSTORE_DATA")
        return
    backbone = load_backbone("efficientnet-lite0")
    split = json.loads((DATA / "miniimagenet-split.json").read_text())
    species = sorted(path.name for path in (BIRDS / "train").glob("*") if path.is_dir())
    if not species:
        print(f"no birds at {BIRDS}: set ACTSTORE_BIRDS to measure look-alikes", file=sys.stderr)
    if "--prior" in arguments:
        print_prior(backbone, [activations(backbone, DATA / "miniimagenet.tar", split["base"]),
                               *([activations(backbone, BIRDS, species[::2])] if species else [])])  # fmt: skip
        return
    photos = activations(backbone, DATA / "miniimagenet.tar", split["novel"])
    results = []
    for shots in (1, SHOTS, 5):
        draws = [draw(backbone, photos, number, shots) for number in range(DRAWS)]
        results += summary(f"mini-ImageNet, {shots} photos", draws)
    if species:
        names = species[1::2]
        birds = activations(backbone, BIRDS, names)
        families = np.array([name.rpartition("_")[2] for name in names])
        asked = {
            "birds, other species": [draw(backbone, birds, number) for number in range(DRAWS)],
            "birds, others of a taught family (Gull, Warbler, …)": [
                draw(backbone, birds, number, families=families) for number in range(DRAWS)
            ],
            "birds, photos of anything else": [draw(backbone, birds, n, others=photos) for n in range(DRAWS)],
        }
        results += [result for name, draws in asked.items() for result in summary(name, draws)]
    report("photos-unknown", results, BARS)


def activations(backbone: Backbone, images: Path, names: Sequence[str]) -> Rows:
    """Kept beside other temporary files: extraction takes minutes."""
    key = f"{str(backbone.weights_sha256)[:12]}-{zlib.crc32(' '.join(names).encode())}-{PER_CLASS}"
    kept = Path(tempfile.gettempdir()) / f"photos-unknown-{key}.npy"
    if not kept.exists():
        of_class: dict[str | None, list[object]] = {name: [] for name in names}
        for item in find_images(images)["train"].items:
            if len(of_class.get(item.label, range(PER_CLASS))) < PER_CLASS:
                of_class[item.label].append(item)
        chosen = [item for name in names for item in of_class[name]]
        found, _, failures = activations_of(backbone, chosen, torch.device("cpu"))  # type: ignore[arg-type]
        assert not failures
        np.save(kept, found.reshape(len(names), PER_CLASS, -1).numpy())
    return torch.from_numpy(np.load(kept))


def draw(
    backbone: Backbone, rows: Rows, number: int, shots: int = SHOTS, families: NDArray[np.str_] | None = None,
    others: Rows | None = None,
) -> dict[str, float]:  # fmt: skip
    """A classifier of WAY random categories, asked about others of their photos and about photos of all others.

    families: one category of a family is taught, and the others of these families are asked about. others: categories
    that are asked about instead.
    """
    random = np.random.default_rng([number, shots])
    order = random.permutation(len(rows))
    strangers = order[WAY:]
    if families is not None:
        several = [place for place in order if (families == families[place]).sum() > 1]
        first = dict(reversed([(families[place], place) for place in several]))
        order = np.array(list(first.values()))[:WAY]
        strangers = np.array([place for place in several if place not in order and families[place] in families[order]])
    taught = order[:WAY]
    at = {place: random.permutation(PER_CLASS) for place in taught}
    learner = Classifier.alone(rows.shape[2], background_of(backbone))
    learner.adapt_all({str(place): rows[place, at[place][:shots]] for place in taught})
    known = torch.cat([rows[place, at[place][shots : shots + ASKED]] for place in taught])
    chosen = rows[strangers] if others is None else others
    strange = chosen[:, random.permutation(PER_CLASS)[:STRANGERS]].flatten(0, 1)
    right = [line[0][0] == str(place) for line, place in zip(learner.predict(known, 1), taught.repeat(ASKED))]  # noqa: B905
    return {
        "right": 100 * float(np.mean(right)),
        "accepted": 100 * float(learner.is_known(known).float().mean()),
        "refused": 100 * float((~learner.is_known(strange)).float().mean()),
        "auroc": 100 * auroc(learner.familiarity(known).numpy(), learner.familiarity(strange).numpy()),
    }


def summary(name: str, draws: Sequence[dict[str, float]]) -> list[Result]:
    """Means over the draws, with their 95% intervals."""
    words = {"right": "known photos right", "accepted": "known photos accepted", "refused": "others refused",
             "auroc": "AUROC"}  # fmt: skip
    values = {key: [one[key] for one in draws] for key in words}
    return [
        Result(f"{name}: {said} (± {half_width(values[key]):.1f})", float(np.mean(values[key])), "%")
        for key, said in words.items()
    ]


def print_prior(backbone: Backbone, sets: Sequence[Rows]) -> None:
    """Shots, and of held-out photos' familiarity among WAY categories the mean and the spread below it, with which 95%
    are accepted in the set where photos are least alike."""
    for shots in (1, 2, 3, 5, 10):
        found: list[Tensor] = []
        for rows in sets:
            of_set = []
            for number in range(DRAWS):
                random = np.random.default_rng([number, shots])
                learner, fresh = Classifier.alone(rows.shape[2], background_of(backbone)), []
                for category in random.permutation(len(rows))[:WAY]:
                    at = random.permutation(PER_CLASS)
                    learner.adapt(str(category), rows[category, at[:shots]])
                    fresh.append(rows[category, at[shots : shots + ASKED]])
                of_set.append(learner.familiarity(torch.cat(fresh)))
            found.append(torch.cat(of_set))
        mean, lowest = torch.cat(found).mean(), min(float(values.quantile(0.05)) for values in found)
        print(f"{shots}: ({mean:.3f}, {(mean - lowest) / 1.645:.3f})")


if __name__ == "__main__":
    main(*sys.argv[1:])
