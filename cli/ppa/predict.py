"""`ppa predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.filekinds import PREDICTIONS, SHEET
from cli.group import emit, example, json_option, table, wants_json
from cli.options import PATH, device_option, sheet_option, wait_without_spinning, weights_option
from cli.outputs import claim
from cli.ppa.options import classifier_option, unknown_option
from cli.ppa.recognition import set_unknown_at
from cli.row_options import filter_options
from cli.stores import Place, store_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actstore.images.image_set import ImageItem
    from predictor.classifier.predictions import Prediction

PRINTED = Path("-")
SHOWN, KEPT = 3, 5  # categories of an image by default: in the table, and elsewhere


@click.command(
    epilog=example(
        "ppa predict photo.jpg another.jpg",
        "ppa predict photos/ --sheet photos.html",
        "ppa predict photos/ --only-mine --csv photos.csv",
        "ppa predict --store imagenet.zarr --split val --rows 0:1000 --json",
    )
)
@click.argument("images", nargs=-1, type=PATH)
@classifier_option
@store_option("Classify rows of a store instead of images.")
@click.option("--split", help="Of --store.  [default: the only one, or train]")
@filter_options
@click.option("--top", type=click.IntRange(1), help=f"Categories an image.  [default: {KEPT}, {SHOWN} in the table]")
@click.option("--only-mine", is_flag=True, help="Choose among the taught categories alone.")
@unknown_option
@click.option("--csv", "csv_file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
              help="Also write a line for each image, for a spreadsheet; -: print it instead.")  # fmt: skip
@sheet_option
@weights_option()
@device_option()
@click.option(
    "--on-error", type=click.Choice(["continue", "skip", "fail"]), default="continue", show_default=True,
    help="An image that cannot be read: left out and exit code 1 at the end, left out, or the end.",
)  # fmt: skip
@json_option
def predict(
    images: tuple[Path, ...], classifier: Path, store: Place | None, split: str | None, classes: tuple[str, ...],
    path_glob: str | None, rows: str | None, top: int | None, only_mine: bool, unknown_at: float | None,
    csv_file: Path | None,
    sheet: Path | None, weights: Path | None, device: str, on_error: str,
) -> None:  # fmt: skip
    """The most probable categories of IMAGES (files or folders), or of rows of a store.

    An image that cannot be read is named and left out.
    """
    require_outputs(images, classifier, store, csv_file, sheet)
    wait_without_spinning()
    from actstore.errors import InvalidInputError
    from actstore.storage.atomic_file import write_atomic
    from cli.ppa.support import list_queries, read_images, read_rows
    from predictor.classifier.classifier_file import load_classifier
    from predictor.classifier.predictions import predict_images, to_csv

    learner = load_classifier(classifier)
    set_unknown_at(learner, unknown_at)
    network = learner.about.get("network", {})
    items: list[ImageItem] = []
    asked = 0
    if store is not None:
        opened, numbers, activations = read_rows(network, store, split, classes, path_glob, rows)
        names = [opened.ids[int(row)] for row in numbers]
    else:
        listed = list_queries(images)
        asked = len(listed)
        activations, items = read_images(network, weights, listed, device, "fail" if on_error == "fail" else "skip")
        names = [item.path.as_posix() for item in items]
        if not items:
            what = "the image cannot" if asked == 1 else f"none of the {asked:,} images can"
            raise InvalidInputError(f"{what} be read")
    predictions = predict_images(learner, names, activations, top or KEPT, only_mine)
    if sheet is not None:
        write_prediction_sheet(sheet, items, predictions, classifier)
    if csv_file is not None and csv_file != PRINTED:
        write_atomic(csv_file, to_csv(predictions).encode())
        click.echo(f"csv: {csv_file}", err=True)
    if csv_file == PRINTED:
        click.echo(to_csv(predictions), nl=False)
    else:
        emit([prediction.to_json() for prediction in predictions], describe(predictions, top or SHOWN))
    if asked > len(items) and on_error == "continue":
        click.echo(f"{asked - len(items):,} of {asked:,} images could not be read", err=True)
        click.get_current_context().exit(1)


def require_outputs(
    images: tuple[Path, ...], classifier: Path, store: Place | None, csv_file: Path | None, sheet: Path | None
) -> None:
    if bool(images) == (store is not None):
        raise click.UsageError("give images to classify, or rows of a store with --store: one of the two")
    if csv_file == PRINTED and wants_json():
        raise click.UsageError("--json and --csv - exclude each other; name a file for one of them")
    if sheet is not None and store is not None:
        raise click.UsageError("a sheet shows images, and rows of a store have none: give images, or no --sheet")
    claim((sheet, SHEET), (None if csv_file == PRINTED else csv_file, PREDICTIONS), inputs=[classifier, *images])


def describe(predictions: Sequence[Prediction], top: int) -> str:
    lines = []
    for prediction in predictions:
        first, others = f"{prediction.top[0].probability:.1%}", prediction.top[1:top]
        if prediction.is_unknown:
            first, others = "", prediction.top[:top]
        more = ", ".join(f"{guess.shown} {guess.probability:.1%}" for guess in others)
        lines.append([prediction.image, prediction.answer, first, more])
    head = ["image", "category", "", "or"]
    return table(head, lines) if any(line[3] for line in lines) else table(head[:3], [line[:3] for line in lines])


def write_prediction_sheet(
    path: Path, items: Sequence[ImageItem], predictions: Sequence[Prediction], classifier: Path
) -> None:
    from predictor.report.photo_sheet import photo_card, write_sheet

    cards = [
        photo_card(item, prediction.answer, prediction.top, "unknown" if prediction.is_unknown else "plain")
        for item, prediction in zip(items, predictions, strict=True)
    ]
    unknown = sum(prediction.is_unknown for prediction in predictions)
    about = f"{len(predictions):,} photos by {classifier}" + (f", {unknown:,} of them unknown" if unknown else "")
    write_sheet(path, "What the photos show", about, [("", cards)])
    click.echo(f"sheet: {path}", err=True)
