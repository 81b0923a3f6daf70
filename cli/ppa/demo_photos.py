"""`ppa demo --photos`: from a folder of one's own class folders to a store, classifiers, a sheet and a report."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import actstore
from actstore import Split
from actstore.backbones.network import imagenet_names
from actstore.compute.tensors import borrow
from actstore.errors import InvalidInputError
from actstore.extraction.recorded_network import network_of
from actstore.images.image_set import ImageItem
from actstore.storage.atomic_file import write_atomic
from cli import filekinds as kinds
from cli.group import table
from cli.outputs import claim_folder
from cli.ppa.demo import perform
from cli.ppa.demo_record import Record
from cli.ppa.demo_steps import Step
from cli.ppa.support import list_support
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import save_classifier
from predictor.classifier.display_names import display
from predictor.classifier.predictions import predict_images
from predictor.classifier.trial import Trial, draw_examples, rest_of, run_trial, teach
from predictor.figures.style import known_display
from predictor.report.html import code, listing, paragraph
from predictor.report.photo_sheet import Card, Standing, photo_card, plain_table, write_sheet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

SHOTS = (1, 3, 5)
DRAWS = 5
MOST_CARDS = 300
BACKBONE = "efficientnet-lite0"


def run_photo_demo(photos: Path, out: Path) -> dict[str, Any]:
    """All of it; what is told on the way goes to stderr."""
    began = time.monotonic()
    items = list_photos(photos, out)
    split = build_store(out)
    rows, kept = rows_by_category(split, items)
    about = {"network": network_of(split)}
    make = lambda: Classifier.alone(split.dim, about=about)  # noqa: E731 - a new one for every draw
    trials = []
    for shots in SHOTS:
        click.echo(f"adapt with {shots} of each, classify the rest, {DRAWS} draws", err=True)
        trials.append(run_trial(make, rows, shots, DRAWS))
        learner = teach(make, rows, draw_examples(rows, shots, (0, shots, 0)))
        save_classifier(out / f"classifier-{shots}.safetensors", learner)
    taught = draw_examples(rows, SHOTS[-1], (0, SHOTS[-1], 0))
    cards = photo_cards(learner, rows, rest_of(rows, taught), kept)
    write_pages(photos, out, split, trials, cards)
    return {
        "folder": str(out), "store": str(out / "photos.zarr"), "report": str((out / "report.html").resolve()),
        "sheet": str((out / "sheet.html").resolve()), "categories": len(rows),
        "photos": sum(map(len, rows.values())), "seen": seen_by_network(split, list(rows)),
        "shots": [asdict(trial) for trial in trials], "seconds": time.monotonic() - began,
    }  # fmt: skip


def list_photos(photos: Path, out: Path) -> dict[str, list[ImageItem]]:
    """Category -> images, each once, and a list of them beside the store, by which a change is noticed."""
    classifiers = [(f"classifier-{shots}.safetensors", kinds.OWN_CLASSIFIER) for shots in SHOTS]
    pages = [("sheet.html", kinds.SHEET), ("report.html", kinds.SHEET)]
    claim_folder(out, [("steps.json", kinds.STEPS), ("photos.csv", kinds.PHOTO_LIST), *classifiers, *pages])
    # a store takes no `..` in an id; what lies below the folder stays as it is, see `_absolute`
    listed = list_support(photos.resolve() if ".." in photos.parts else photos)
    most = max(map(len, listed.values()))
    if len(listed) < 2 or most < 2:
        count = f"{len(listed)} categor{'y' if len(listed) == 1 else 'ies'}"
        raise InvalidInputError(
            "a demo needs two categories, and one with two images so that one can be tested; "
            f"{photos} has {count}, at most {most} images each"
        )
    text = io.StringIO("path,label\n")
    text.seek(0, io.SEEK_END)
    lines = [(_absolute(item), name) for name, images in listed.items() for item in images]
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(lines)
    write_atomic(out / "photos.csv", text.getvalue().encode())
    return listed


def _absolute(item: ImageItem) -> str:
    """Links stay as they are: one photo may lie in two folders."""
    return item.path.absolute().as_posix()


def build_store(out: Path) -> Split:
    """By `actstore build`, in the same way as one would type it; up to date, it is left as it is."""
    store, listing = out / "photos.zarr", out / "photos.csv"
    title = f"run {BACKBONE} over the photos and keep the activations"
    words = ("actstore", "build", str(listing), str(store), "--backbone", BACKBONE, "--workers", "0", "--dtype", "f4")
    perform(Step("build", title, words, (listing,), (store,)), Record(out / "steps.json"), title)
    return actstore.open(store)["train"]


def rows_by_category(
    split: Split, items: Mapping[str, Sequence[ImageItem]]
) -> tuple[dict[str, Tensor], dict[str, list[ImageItem]]]:
    """Category -> activations (n, dim) and their images, in the order of the store; what could not be read is in
    neither."""
    by_id = {_absolute(item).lstrip("/"): item for images in items.values() for item in images}
    rows, kept = {}, {}
    for place, name in enumerate(split.classes):
        numbers = split.class_index.rows(place)
        if len(numbers):
            rows[name] = borrow(split.take(numbers)).float()
            kept[name] = [by_id[split.ids[int(row)]] for row in numbers]
    return rows, kept


def seen_by_network(split: Split, names: Sequence[str]) -> list[str]:
    """Of these categories, those that the network was trained on, by WNID or by English name."""
    trained = set(split.spec.provenance.get("trained_classes") or ())
    shown = {imagenet_names()[wnid].lower() for wnid in trained if wnid in imagenet_names()}
    return [name for name in names if name in trained or name.lower() in shown]


def photo_cards(
    learner: Classifier, rows: Mapping[str, Tensor], rest: Mapping[str, NDArray[np.int64]],
    items: Mapping[str, Sequence[ImageItem]],
) -> dict[str, list[Card]]:  # fmt: skip
    """Wrong, unknown and right ones among the photos that were not taught; at most MOST_CARDS, evenly spaced."""
    from torch import stack

    places = [(name, int(place)) for name, numbers in rest.items() for place in numbers]
    places = places[:: -(-len(places) // MOST_CARDS)]
    images = [items[name][place] for name, place in places]
    queries = stack([rows[name][place] for name, place in places])
    predictions = predict_images(learner, [image.id for image in images], queries)
    cards: dict[str, list[Card]] = {"wrong": [], "unknown": [], "right": []}
    for (name, _), image, prediction in zip(places, images, predictions, strict=True):
        standing: Standing = "right" if prediction.top[0].category == name else "wrong"
        note = display(learner, name) + ("" if standing == "right" else f", taken for {prediction.answer}")
        if prediction.is_unknown:
            standing, note = "unknown", f"{display(learner, name)}: unknown"
        cards[standing].append(photo_card(image, note, prediction.top, standing, name))
    return cards


def write_pages(
    photos: Path, out: Path, split: Split, trials: Sequence[Trial], cards: Mapping[str, Sequence[Card]]
) -> None:
    counts = {kind: len(some) for kind, some in cards.items()}
    about = f"{SHOTS[-1]} examples of each category taught, the rest classified: " + ", ".join(
        f"{count:,} {kind}" for kind, count in counts.items()
    )
    sections = [(f"{kind.capitalize()}: {counts[kind]:,}", some) for kind, some in cards.items()]
    write_sheet(out / "sheet.html", f"Photos of {photos}", about, sections)
    seen = seen_by_network(split, split.classes)
    notes = [f"{BACKBONE}, trained on ImageNet's 1,000 categories; nothing was trained here.", seen_sentence(seen)]
    commands = [
        f"actstore build {photos} photos.zarr --backbone {BACKBONE}",
        f"ppa adapt --backbone {BACKBONE} --support {photos}",
        "ppa predict more-photos/ --sheet sheet.html",
        f"ppa check {photos} --sheet check.html",
    ]
    more = "\n".join([
        plain_table(HEADER, [trial_cells(trial) for trial in trials]), listing(notes),
        paragraph("The same by hand:"), code("\n".join(commands)),
    ])  # fmt: skip
    wrong = [(f"Taken for another category: {counts['wrong']:,}", cards["wrong"]),
             (f"Unknown: {counts['unknown']:,}", cards["unknown"])]  # fmt: skip
    total = f"{len(split.classes):,} categories, {len(split):,} photos, {DRAWS} draws of the examples"
    write_sheet(out / "report.html", f"A few photos of each teach the rest: {photos}", total, wrong, more)


HEADER = ["examples of each", "right of the rest", "accepted as known", "others called unknown", "AUROC known/unknown"]


def trial_cells(trial: Trial) -> list[Any]:
    def share(value: float | None) -> str:
        return "" if value is None else f"{value:.1%}"

    spread = f"{trial.accuracy:.1%} ± {trial.deviation:.1%}"
    auroc = "" if trial.auroc is None else f"{trial.auroc:.3f}"
    return [trial.shots, spread, share(trial.accepted), share(trial.refused), auroc]


def seen_sentence(seen: Sequence[str]) -> str:
    if not seen:
        return "None of these categories is called like one that the network was trained on."
    more = f" and {len(seen) - 5:,} more" if len(seen) > 5 else ""
    named = ", ".join(known_display(name) for name in seen[:5]) + more
    return f"The network was trained on {len(seen):,} of these categories ({named}): these are no results on new ones."


def describe_photos(run: dict[str, Any]) -> str:
    lines = [trial_cells(Trial(**trial)) for trial in run["shots"]]
    return "\n".join([
        f"{run['categories']:,} categories, {run['photos']:,} photos; {run['seconds']:.0f} s",
        "", table(HEADER, lines), "", seen_sentence(run["seen"]), f"report: {run['report']}", f"sheet: {run['sheet']}",
    ])  # fmt: skip
