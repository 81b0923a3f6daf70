"""`ppa export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cli.group import emit, example, json_option
from cli.options import FILE, PATH, wait_without_spinning, weights_option
from cli.outputs import claim
from cli.ppa.options import classifier_option

CHECKED = 100  # photos that a graph is compared on


@click.command(
    epilog=example(
        "ppa export --onnx classifier.onnx",
        "ppa export --torch linear.pt --classifier mine.safetensors",
        "ppa export --onnx model.onnx --with-backbone --check photos/",
    )
)
@classifier_option
@click.option("--torch", "torch_file", type=FILE, help="A state dict for nn.Linear, with row_category.")
@click.option("--onnx", "onnx_file", type=FILE,
              help="A graph activations -> scores, probabilities; checked with onnxruntime.")  # fmt: skip
@click.option("--with-backbone", is_flag=True,
              help="The network goes into the graph too: an image (height, width, 3) of any size -> names, "
              "probabilities.")  # fmt: skip
@click.option("--check", type=PATH, help=f"Compare that graph on up to {CHECKED} photos of a folder.")
@weights_option()
@json_option
def export(
    classifier: Path, torch_file: Path | None, onnx_file: Path | None, with_backbone: bool, check: Path | None,
    weights: Path | None,
) -> None:  # fmt: skip
    """Write a classifier for use without this library. Category names go into a .json beside it.

    Older exports are replaced; a file of any other kind is not.
    """
    wait_without_spinning()
    from predictor import load_classifier, names_file

    if torch_file is None and onnx_file is None:
        raise click.UsageError("say what to write: --torch FILE, --onnx FILE, or both")
    if with_backbone and onnx_file is None:
        raise click.UsageError("--with-backbone puts the network into a graph: name that with --onnx FILE")
    if not with_backbone and (check or weights):
        raise click.UsageError("--check and --weights belong to --with-backbone")
    beside = {names_file(path) for path in (torch_file, onnx_file) if path is not None}  # both may share it
    claim(torch_file, onnx_file, *sorted(beside), inputs=[classifier])
    if onnx_file is not None and onnx_file.suffix != ".onnx":
        raise click.UsageError(f"--onnx writes a graph: its name must end in .onnx, got {onnx_file}")
    if torch_file is not None and torch_file.suffix == ".onnx":
        raise click.UsageError(f"--torch writes a state dict and no graph: name it .pt or .pth, got {torch_file}")
    learner = load_classifier(classifier)
    result: dict[str, Any] = {"rows": len(learner.rows.weight), "categories": len(learner.categories)}
    written, agrees = [str(path) for path in (torch_file, onnx_file) if path is not None], ""
    if onnx_file is not None:
        found = learner.export_onnx(onnx_file, with_backbone=with_backbone, check=check or (), weights=weights)
        if isinstance(found, float):
            result["onnx_difference"], agrees = found, f"; onnxruntime agrees within {found:.2g}"
        else:
            result |= found.to_json()
            agrees = f"; onnxruntime names the same category first for {found.same} of {found.images} images, "
            agrees += f"probabilities agree within {found.difference:.2g}"
        result["onnx"] = str(onnx_file)
    if torch_file is not None:
        learner.export_torch(torch_file)
        result["torch"] = str(torch_file)
    what = f"{result['rows']:,} rows for {result['categories']:,} categories"
    emit(result, f"{' and '.join(written)}: {what}{agrees}")
