"""`ppa check`."""

from __future__ import annotations

from pathlib import Path

import click

from cli.group import emit, example, json_option
from cli.options import FILE, FOLDER, PATH, device_option, sheet_option, wait_without_spinning
from cli.outputs import claim
from cli.ppa.options import CLASSIFIER_FILE
from cli.ppa.start_options import say_all
from cli.row_options import DEFAULT_NETWORK, fetching_options, require_fetching_options


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
    claim(sheet, inputs=[photos])
    wait_without_spinning()
    from predictor import check_folder, load_classifier

    if photos is None:
        found = load_classifier(classifier or CLASSIFIER_FILE).check()
    else:
        found = check_folder(photos, backbone, weights=weights, pretrained=pretrained, offline=offline, device=device,
                             progress=True)  # fmt: skip
    say_all(found.warnings)
    if sheet is not None:
        found.write_sheet(sheet, f"Check of {photos}")
        click.echo(f"sheet: {sheet}", err=True)
    emit(found.to_json(), found.to_text())
