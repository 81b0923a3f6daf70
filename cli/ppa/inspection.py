"""`ppa check` and `ppa analyse`: a look at what was taught, and into phi."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cli.group import emit, example, json_option, table
from cli.options import FILE, FOLDER, PATH, device_option, sheet_option, wait_without_spinning
from cli.outputs import claim
from cli.ppa.options import CLASSIFIER_FILE, PHI_RUN, head_option
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


@click.command(
    epilog=example(
        "ppa analyse --phi runs/phi1 --head resnet50-900/best.safetensors", "ppa analyse --phi runs/phi1 --json"
    )
)
@click.option("--phi", type=PHI_RUN, default="phi1", show_default=True, help="A run of `ppa train`.")
@head_option("The backbone's classifier of the base classes, w_large^pt.")
@json_option
def analyse(phi: Path, head: Path | None) -> None:
    """What phi makes of the activation's channels: its diagonal, impacts, and top-k similarity with w_large^pt."""
    from predictor import load_phi, read_head
    from predictor.phi import analyse as run
    from predictor.protocol import head_for

    trained = load_phi(phi)
    dim = trained.phi.spec.dim
    weight = None if head is None else head_for(read_head(head), trained.categories.base, dim).weight
    result = run(trained.phi, weight)
    emit(result, describe(result))


def describe(result: dict[str, Any]) -> str:
    from predictor.phi import PAPER

    names = {
        "diagonal_min": "smallest on phi's diagonal", "diagonal_max": "largest on phi's diagonal",
        "diagonal_share_mean": "diagonal / sum of a row, mean", "impact_mean": "impact of a channel on phi, mean",
        "impact_std": "… standard deviation", "head_impact_mean": "impact on w_large^pt (unit length), mean",
        "head_impact_std": "… standard deviation ",
    }  # fmt: skip
    rows = [
        [text, f"{result[key]:.4g}", f"{PAPER[key]:.4g}" if key in PAPER and result["phi"] == "phi1" else ""]
        for key, text in names.items()
        if key in result
    ]
    text = table([result["phi"], "here", "paper (phi1)"], rows)
    if "top_k_similarity" in result:
        similar = [
            [k, f"{share:.3f}", f"{result['random_similarity'][k]:.3f}"]
            for k, share in result["top_k_similarity"].items()
        ]
        text += "\n\n" + table(["k", "OS(phi, w, k)", "random order"], similar)
    return text
