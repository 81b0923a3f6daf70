"""`ppa check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.filekinds import SHEET
from cli.group import emit, example, json_option
from cli.networks import DEFAULT_NETWORK, fetching_options, load_network, require_fetching_options
from cli.options import FILE, FOLDER, PATH, device_option, sheet_option, wait_without_spinning
from cli.outputs import claim
from cli.ppa.options import CLASSIFIER_FILE

if TYPE_CHECKING:
    from actstore.images.image_set import ImageItem
    from predictor.classifier.classifier import Classifier


@click.command(
    epilog=example(
        "ppa check photos/",
        "ppa check photos/ --sheet check.html",
        "ppa check --classifier classifier.safetensors --json",
    )
)
@click.argument("photos", required=False, type=FOLDER)
@click.option(
    "--classifier", type=FILE, help=f"Without PHOTOS: check what this one was taught.  [default: {CLASSIFIER_FILE}]"
)
@click.option("--backbone", help=f"With PHOTOS: the network.  {DEFAULT_NETWORK}")
@click.option("--weights", type=PATH, help="Of the backbone, where they are not installed.")
@fetching_options
@device_option()
@sheet_option
@json_option
def check(
    photos: Path | None, classifier: Path | None, backbone: str | None, weights: Path | None, pretrained: bool,
    offline: bool, device: str, sheet: Path | None,
) -> None:  # fmt: skip
    """Classify each photo of PHOTOS/CATEGORY/*.jpg by the others: which go wrong, and which categories look alike.

    A photo that goes wrong may lie in the wrong folder, or show something else. Photos that cannot be read are named
    and left out.
    """
    if photos is not None and classifier is not None:
        raise click.UsageError("check PHOTOS, or what a --classifier was taught: one of the two")
    if photos is None and (backbone or weights or pretrained or offline or sheet):
        raise click.UsageError(
            "--backbone, --weights, --pretrained, --offline and --sheet belong to PHOTOS; a classifier keeps no photos"
        )
    require_fetching_options(backbone, pretrained, offline)
    claim((sheet, SHEET), inputs=[photos])
    wait_without_spinning()
    from cli.ppa.check_report import CheckReport
    from predictor.classifier.checking import check_support
    from predictor.classifier.classifier_file import load_classifier

    images: dict[str, list[ImageItem]] = {}
    if photos is not None:
        learner, images = learn_photos(photos, device, weights, backbone, pretrained, offline)
    else:
        learner = load_classifier(classifier or CLASSIFIER_FILE)
    report = CheckReport(check_support(learner), learner, images)
    if sheet is not None:
        report.write_sheet(sheet, f"Check of {photos}")
        click.echo(f"sheet: {sheet}", err=True)
    emit(report.to_json(), report.to_text())


def learn_photos(
    photos: Path, device: str, weights: Path | None, name: str | None, pretrained: bool, offline: bool
) -> tuple[Classifier, dict[str, list[ImageItem]]]:
    """A classifier of the folders alone, and the images of its examples in their order."""
    from actstore.extraction.recorded_network import record_of
    from cli.ppa.support import list_support, support_from_images
    from predictor.classifier.photo_start import classifier_alone

    listed = list_support(photos)  # before a network is loaded, or even fetched
    backbone = load_network(name, weights, pretrained, offline)
    record = record_of(backbone, weights)
    support = support_from_images(record, weights, listed, device, "skip", backbone)
    learner = classifier_alone(backbone, {"network": record})
    readable = {category: (rows, images) for category, (rows, images) in support.items() if images}
    for category, (rows, _) in readable.items():
        learner.adapt(category, rows)
    return learner, {category: images for category, (_, images) in readable.items()}
