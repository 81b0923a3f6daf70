"""`ppa demo --photos`: from a folder of one's own class folders to a store, classifiers, a sheet and a report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.group import table
from cli.ppa.demo_steps import Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from actstore import Split
    from actstore.images.image_set import ImageItem
    from predictor.classifier.classifier import Classifier
    from predictor.classifier.trial import Trial
    from predictor.report.photo_sheet import Card

SHOTS = (1, 3, 5)
DRAWS = 5
MOST_CARDS = 300
BACKBONE = "efficientnet-lite0"


def run_photo_demo(photos: Path, out: Path) -> dict[str, Any]:
    """All of it; what is told on the way goes to stderr."""
    from predictor.classifier.classifier_file import save_classifier
    from predictor.classifier.trial import draw_examples, rest_of, run_trial, teach

    began = time.monotonic()
    items = list_photos(photos, out)
    split = build_store(photos, out, items)
    rows, kept = rows_by_category(split, items)
    make = classifier_maker(split)
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
        "photos": sum(len(values) for values in rows.values()), "seen": seen_by_network(split, list(rows)),
        "shots": [trial_json(trial) for trial in trials], "seconds": time.monotonic() - began,
    }  # fmt: skip


def list_photos(photos: Path, out: Path) -> dict[str, list[ImageItem]]:
    """Category -> images, each once, and a list of them beside the store, by which a change is noticed."""
    from actstore.errors import InvalidInputError
    from actstore.storage.atomic_file import write_atomic
    from cli import filekinds as kinds
    from cli.outputs import claim_folder
    from cli.ppa.support import list_support

    classifiers = [(f"classifier-{shots}.safetensors", kinds.OWN_CLASSIFIER) for shots in SHOTS]
    pages = [("sheet.html", kinds.SHEET), ("report.html", kinds.SHEET)]
    claim_folder(out, [("steps.json", kinds.STEPS), ("photos.csv", kinds.PHOTO_LIST), *classifiers, *pages])
    # a store takes no `..` in an id; what lies below the folder stays as it is, see `_absolute`
    found = list_support(photos.resolve() if ".." in photos.parts else photos)
    if len(found) < 2 or max(len(images) for images in found.values()) < 2:
        what = (
            f"{len(found)} categor{'y' if len(found) == 1 else 'ies'}, at most {max(map(len, found.values()))} images"
        )
        raise InvalidInputError(
            f"a demo needs two categories, and one with two images so that one can be tested; {photos} has {what} each"
        )
    lines = ["path,label"]
    for name, images in found.items():
        lines += [f"{_quoted(_absolute(item))},{_quoted(name)}" for item in images]
    write_atomic(out / "photos.csv", ("\n".join(lines) + "\n").encode())
    return found


def _absolute(item: ImageItem) -> str:
    """Links stay as they are: one photo may lie in two folders."""
    return item.path.absolute().as_posix()


def _quoted(text: str) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def build_store(photos: Path, out: Path, items: Mapping[str, Sequence[ImageItem]]) -> Split:
    """By `actstore build`, in the same way as one would type it; up to date, it is left as it is."""
    import shlex

    import actstore
    from cli.ppa.demo import perform
    from cli.ppa.demo_record import Record

    store, listing = out / "photos.zarr", out / "photos.csv"
    step = Step("build", f"run {BACKBONE} over the photos and keep the activations", (
        "actstore", "build", str(listing), str(store), "--backbone", BACKBONE, "--workers", "0", "--dtype", "f4",
    ), (listing,), (store,))  # fmt: skip
    record = Record(out / "steps.json")
    if record.is_done(step):
        click.echo(f"{step.title}: up to date", err=True)
    else:
        click.echo(f"$ {shlex.join(step.words)}", err=True)
        perform(step, record)
    return actstore.open(store)["train"]


def rows_by_category(
    split: Split, items: Mapping[str, Sequence[ImageItem]]
) -> tuple[dict[str, Tensor], dict[str, list[ImageItem]]]:
    """Category -> activations (n, dim) and their images, in the order of the store; what could not be read is in
    neither."""
    import torch

    by_id = {_absolute(item).lstrip("/"): item for images in items.values() for item in images}
    rows, kept = {}, {}
    for place, name in enumerate(split.classes):
        numbers = split.class_index.rows(place)
        if len(numbers):
            rows[name] = torch.from_numpy(split.take(numbers)).float()
            kept[name] = [by_id[split.ids[int(row)]] for row in numbers]
    return rows, kept


def classifier_maker(split: Split) -> Any:
    from actstore.extraction.recorded_network import network_of
    from predictor.classifier.classifier import Classifier

    about = {"network": network_of(split)}
    return lambda: Classifier.alone(split.dim, about=about)


def seen_by_network(split: Split, names: Sequence[str]) -> list[str]:
    """Of these categories, those that the network was trained on, by WNID or by English name."""
    from actstore.backbones.imagenet import imagenet_names

    trained = set(split.spec.provenance.get("trained_classes") or ())
    shown = {imagenet_names()[wnid].lower() for wnid in trained if wnid in imagenet_names()}
    return [name for name in names if name in trained or name.lower() in shown]


def photo_cards(
    learner: Classifier, rows: Mapping[str, Tensor], rest: Mapping[str, NDArray[np.int64]],
    items: Mapping[str, Sequence[ImageItem]],
) -> dict[str, list[Card]]:  # fmt: skip
    """Wrong, unknown and right ones among the photos that were not taught; at most MOST_CARDS, evenly spaced."""
    import torch

    from predictor.classifier.display_names import display
    from predictor.classifier.predictions import predict_images
    from predictor.report.photo_sheet import Bar, Card, Standing, thumbnail

    places = [(name, int(place)) for name, numbers in rest.items() for place in numbers]
    chosen = places[:: -(-len(places) // MOST_CARDS)]
    queries = torch.stack([rows[name][place] for name, place in chosen])
    names = [items[name][place].path.as_posix() for name, place in chosen]
    found: dict[str, list[Card]] = {"wrong": [], "unknown": [], "right": []}
    for (name, place), one in zip(chosen, predict_images(learner, names, queries), strict=True):
        standing: Standing = "unknown" if one.is_unknown else "right" if one.top[0].category == name else "wrong"
        bars = [Bar(guess.shown, guess.probability, "right" if guess.category == name else "plain")
                for guess in one.top]  # fmt: skip
        is_ = display(learner, name)
        note = (
            is_
            if standing == "right"
            else f"{is_}, taken for {one.answer}"
            if standing == "wrong"
            else f"{is_}: unknown"
        )
        found[standing].append(Card(one.image, thumbnail(items[name][place].load()), note, bars, standing))
    return found


def write_pages(
    photos: Path, out: Path, split: Split, trials: Sequence[Trial], cards: Mapping[str, Sequence[Card]]
) -> None:
    from predictor.report.html import code, listing, paragraph
    from predictor.report.photo_sheet import plain_table, write_sheet

    counts = {kind: len(found) for kind, found in cards.items()}
    about = f"{SHOTS[-1]} examples of each category taught, the rest classified: " + ", ".join(
        f"{count:,} {kind}" for kind, count in counts.items()
    )
    sections = [(f"{kind.capitalize()}: {counts[kind]:,}", found) for kind, found in cards.items()]
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


def trial_json(trial: Trial) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(trial)


def seen_sentence(seen: Sequence[str]) -> str:
    if not seen:
        return "None of these categories is called like one that the network was trained on."
    from predictor.classifier.display_names import known_display

    named = ", ".join(known_display(name) for name in seen[:5]) + (
        f" and {len(seen) - 5:,} more" if len(seen) > 5 else ""
    )
    return f"The network was trained on {len(seen):,} of these categories ({named}): these are no results on new ones."


def describe_photos(run: dict[str, Any]) -> str:
    from predictor.classifier.trial import Trial

    lines = [trial_cells(Trial(**one)) for one in run["shots"]]
    return "\n".join([
        f"{run['categories']:,} categories, {run['photos']:,} photos; {run['seconds']:.0f} s",
        "", table(HEADER, lines), "", seen_sentence(run["seen"]), f"report: {run['report']}", f"sheet: {run['sheet']}",
    ])  # fmt: skip
