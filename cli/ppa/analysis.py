"""`ppa analyse`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cli.group import emit, example, json_option, table
from cli.ppa.options import PHI_RUN, head_option


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
