"""`ppa predict`."""

from __future__ import annotations

from pathlib import Path

import click

from cli.group import emit, example, json_option, wants_json
from cli.options import PATH, device_option, sheet_option, wait_without_spinning, weights_option
from cli.outputs import claim
from cli.ppa.options import classifier_option, unknown_option
from cli.ppa.start_options import say_all
from cli.row_options import filter_options
from cli.stores import Place, store_option

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
    from predictor import load_classifier

    learner = load_classifier(classifier)
    if unknown_at is not None:
        learner.set_unknown_at(unknown_at)
    if store is not None:
        found = learner.predict_store(store, split=split, classes=classes, path_glob=path_glob, rows=rows,
                                      top=top or KEPT, only_mine=only_mine)  # fmt: skip
    else:
        found = learner.predict_images(images, top=top or KEPT, only_mine=only_mine, weights=weights, device=device,
                                       on_error="fail" if on_error == "fail" else "skip", progress=True)  # fmt: skip
    say_all(found.warnings)
    if sheet is not None:
        found.write_sheet(sheet, str(classifier))
        click.echo(f"sheet: {sheet}", err=True)
    if csv_file is not None and csv_file != PRINTED:
        found.write_csv(csv_file)
        click.echo(f"csv: {csv_file}", err=True)
    if csv_file == PRINTED:
        click.echo(found.to_csv(), nl=False)
    else:
        emit(found.to_json(), found.to_text(top or SHOWN))
    if found.unreadable and on_error == "continue":
        lost = len(found.unreadable)
        click.echo(f"{lost:,} of {lost + len(found):,} images could not be read", err=True)
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
    claim(sheet, None if csv_file == PRINTED else csv_file, inputs=[classifier, *images])
