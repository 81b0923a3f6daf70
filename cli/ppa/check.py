"""`ppa check`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.group import emit, example, json_option, table
from cli.options import device_option, wait_without_spinning
from cli.ppa.classifier_option import DEFAULT

if TYPE_CHECKING:
    from actstore.images.image_set import ImageItem
    from predictor.classifier.checking import Check, Checked
    from predictor.classifier.classifier import Classifier

PAIRS, WRONG = 3, 20  # that the text names
BACKBONE = "efficientnet-lite0"


@click.command(
    epilog=example(
        "ppa check photos/",
        "ppa check photos/ --sheet check.html",
        "ppa check --classifier classifier.safetensors --json",
    )
)
@click.argument("photos", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--classifier", type=click.Path(path_type=Path, dir_okay=False),
    help=f"Without PHOTOS: check what this one was taught.  [default: {DEFAULT}]",
)  # fmt: skip
@click.option("--backbone", help=f"With PHOTOS: the network.  [default: {BACKBONE}]")
@click.option("--weights", type=click.Path(path_type=Path), help="Of the backbone, where they are not installed.")
@click.option("--pretrained", is_flag=True, help="Let timm or torchvision fetch the weights of --backbone.")
@device_option()
@click.option("--sheet", type=click.Path(path_type=Path, dir_okay=False), help="Also write a page of thumbnails.")
@json_option
def check(
    photos: Path | None, classifier: Path | None, backbone: str | None, weights: Path | None, pretrained: bool,
    device: str, sheet: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Classify each photo of PHOTOS/CATEGORY/*.jpg by the others: which go wrong, and which categories look alike.

    A photo that goes wrong may lie in the wrong folder, or show something else. Photos that cannot be read are named
    and left out.
    """
    wait_without_spinning()
    from cli.filekinds import SHEET
    from cli.outputs import claim
    from predictor.classifier.checking import check_support
    from predictor.classifier.classifier_file import load_classifier

    if photos is not None and classifier is not None:
        raise click.UsageError("check PHOTOS, or what a --classifier was taught: one of the two")
    if photos is None and (backbone or weights or pretrained or sheet):
        raise click.UsageError(
            "--backbone, --weights, --pretrained and --sheet belong to PHOTOS; a classifier keeps no photos"
        )
    if pretrained and backbone is None:
        raise click.UsageError("--pretrained belongs to --backbone")
    claim((sheet, SHEET), inputs=[photos])
    items: dict[str, list[ImageItem]] = {}
    if photos is not None:
        learner, items = learn_photos(photos, backbone or BACKBONE, weights, device, pretrained)
    else:
        learner = load_classifier(classifier or DEFAULT)
    found = check_support(learner)
    if sheet is not None:
        write_check_sheet(sheet, photos, found, learner, items)
    emit(to_json(found, items), as_json, lambda: describe(found, learner, items))


def learn_photos(
    photos: Path, name: str, weights: Path | None, device: str, pretrained: bool = False
) -> tuple[Classifier, dict[str, list[ImageItem]]]:
    """A classifier of the folders alone, and the images of its examples in their order."""
    from actstore.backbones.loading import load_backbone
    from actstore.extraction.recorded_network import record_of
    from cli.ppa.support import list_support, read_images
    from predictor.classifier.photo_start import classifier_alone

    listed = list_support(photos)
    backbone = load_backbone(name, weights, pretrained=pretrained)
    record = record_of(backbone, weights)
    wanted = [item for images in listed.values() for item in images]
    rows, read = read_images(record, weights, wanted, device, "skip", backbone)
    learner = classifier_alone(backbone, {"network": record})
    items: dict[str, list[ImageItem]] = {}
    for category in listed:
        mine = [place for place, item in enumerate(read) if item.label == category]
        if mine:
            learner.adapt(category, rows[mine])
            items[category] = [read[place] for place in mine]
    return learner, items


def image_of(one: Checked, items: dict[str, list[ImageItem]]) -> str:
    """Its path; of a classifier's own example, which has none, its number."""
    known = items.get(one.category)
    return f"{one.category}, example {one.example + 1}" if known is None else known[one.example].path.as_posix()


def to_json(found: Check, items: dict[str, list[ImageItem]]) -> dict[str, Any]:
    wrong = [
        {"image": image_of(one, items), "category": one.category, "taken_for": one.guesses[0].category,
         "probability": one.guesses[0].probability}
        for one in found.wrong
    ]  # fmt: skip
    return {
        "accuracy": found.accuracy, "images": len(found.examples), "categories": list(found.names),
        "confusion": found.confusion.tolist(), "wrong": wrong, "single": list(found.single),
        "alike": [{"one": pair.one, "other": pair.other, "share": pair.share, "mistaken": pair.mistaken}
                  for pair in found.alike],
    }  # fmt: skip


def describe(found: Check, learner: Classifier, items: dict[str, list[ImageItem]]) -> str:
    from predictor.classifier.display_names import display

    wrong = found.wrong
    lines = [
        f"{len(found.examples) - len(wrong):,} of {len(found.examples):,} photos are taken for their category by the "
        f"others ({found.accuracy:.1%})",
        "",
        table(["category", "photos", "right", "taken for"], category_lines(found, learner)),
    ]
    if wrong:
        rows = [[image_of(one, items), display(learner, one.category), one.guesses[0].shown,
                 f"{one.guesses[0].probability:.1%}"] for one in wrong[:WRONG]]  # fmt: skip
        lines += ["", table(["goes wrong", "is", "taken for", ""], rows)]
        if len(wrong) > WRONG:
            lines.append(f"and {len(wrong) - WRONG:,} more: --json has them all")
    lines += ["", *alike_lines(found, learner)]
    if found.single:
        lines.append(f"not checked, as they have one photo: {', '.join(found.single)}")
    return "\n".join(lines)


def category_lines(found: Check, learner: Classifier) -> list[list[Any]]:
    from predictor.classifier.display_names import display

    shown = [*(display(learner, name) for name in found.names), "another"]
    lines = []
    for place, row in enumerate(found.confusion.tolist()):
        others = sorted((count, shown[other]) for other, count in enumerate(row) if count and other != place)[::-1]
        lines.append([shown[place], sum(row), row[place], ", ".join(f"{name} {count}" for count, name in others)])
    return lines


def alike_lines(found: Check, learner: Classifier) -> list[str]:
    from predictor.classifier.display_names import display

    return [
        f"look alike: {display(learner, pair.one)} and {display(learner, pair.other)} "
        f"({pair.mistaken} mistaken, {pair.share:.1%} of the probability)"
        for pair in found.alike[:PAIRS]
    ]


def write_check_sheet(
    path: Path, photos: Path | None, found: Check, learner: Classifier, items: dict[str, list[ImageItem]]
) -> None:
    from predictor.classifier.display_names import display
    from predictor.report.html import listing
    from predictor.report.photo_sheet import confusion_html, write_sheet

    shown = [*(display(learner, name) for name in found.names), "another"]
    counts = found.confusion.tolist()
    used = len(shown) if any(row[-1] for row in counts) else len(shown) - 1
    more = listing(alike_lines(found, learner)) + confusion_html(
        shown[:-1], shown[:used], [row[:used] for row in counts]
    )
    right = [one for one in found.examples if one.is_right]
    sections = [
        (f"Taken for another category: {len(found.wrong)}", cards_of(found.wrong, learner, items)),
        (f"Taken for their own: {len(right)}", cards_of(right, learner, items)),
    ]
    about = f"{len(found.examples):,} photos, each classified by the others: {found.accuracy:.1%} right"
    write_sheet(path, f"Check of {photos}", about, sections, more)
    click.echo(f"sheet: {path}", err=True)


def cards_of(examples: Sequence[Checked], learner: Classifier, items: dict[str, list[ImageItem]]) -> list[Any]:
    from predictor.classifier.display_names import display
    from predictor.report.photo_sheet import Bar, Card, thumbnail

    cards = []
    for one in examples:
        item, is_ = items[one.category][one.example], display(learner, one.category)
        note = is_ if one.is_right else f"{is_}, taken for {one.guesses[0].shown}"
        bars = [
            Bar(guess.shown, guess.probability,
                "right" if guess.category == one.category else "wrong" if place == 0 else "plain")
            for place, guess in enumerate(one.guesses)
        ]  # fmt: skip
        picture = thumbnail(item.load())
        cards.append(Card(item.path.as_posix(), picture, note, bars, "right" if one.is_right else "wrong"))
    return cards
