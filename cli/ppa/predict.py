"""`ppa predict`, `ppa categories` and `ppa export`: a classifier in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.group import emit, example, json_option, table
from cli.options import STORE, cache_options, filter_options

if TYPE_CHECKING:
    from actstore.storage.place import Place
    from predictor.classifier.classifier import Classifier

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT = Path("classifier.safetensors")


def classifier_option(command: Command) -> Command:
    """--classifier, by default classifier.safetensors in the current folder."""
    return click.option("--classifier", type=click.Path(path_type=Path, dir_okay=False), default=DEFAULT,
                        show_default=True, help="A file of `ppa adapt`.")(command)  # fmt: skip


@click.command(
    epilog=example(
        "ppa predict photo.jpg another.jpg",
        "ppa predict photos/ --classifier classifier.safetensors --top 3 --json",
        "ppa predict --store imagenet.zarr --split val --rows 0:1000",
    )
)
@click.argument("images", nargs=-1, type=click.Path(path_type=Path))
@classifier_option
@click.option("--store", type=STORE, help="Classify rows of a store instead of images.")
@cache_options
@click.option("--split", help="Of --store.  [default: the only one, or train]")
@filter_options
@click.option("--top", type=click.IntRange(1), default=5, show_default=True)
@click.option("--weights", type=click.Path(path_type=Path), help="The backbone's weights, where they have moved.")
@click.option("--device", default="auto", show_default=True)
@click.option("--on-error", type=click.Choice(["fail", "skip"]), default="fail", show_default=True)
@json_option
def predict(
    images: tuple[Path, ...], classifier: Path, store: Place | None, split: str | None, classes: tuple[str, ...],
    path_glob: str | None, rows: str | None, top: int, weights: Path | None, device: str, on_error: str, as_json: bool,
) -> None:  # fmt: skip
    """The most probable categories of IMAGES (files or folders), or of rows of a store."""
    from cli.ppa.support import list_queries, read_images, read_rows
    from predictor.classifier.classifier_file import load_classifier

    if bool(images) == (store is not None):
        raise click.UsageError("give images to classify, or rows of a store with --store: one of the two")
    learner = load_classifier(classifier)
    network = learner.about.get("network", {})
    if store is not None:
        opened, chosen, activations = read_rows(network, store, split, classes, path_glob, rows)
        names = [opened.ids[int(row)] for row in chosen]
    else:
        activations, items = read_images(network, weights, list_queries(images), device, on_error)
        names = [item.path.as_posix() for item in items]
    found = learner.predict(activations, top)
    result = [
        {"image": name, "top": [{"category": category, "probability": share} for category, share in one]}
        for name, one in zip(names, found, strict=True)
    ]
    emit(result, as_json, lambda: "\n".join(
        f"{name}\n" + "\n".join(f"  {share:6.1%}  {category}" for category, share in one)
        for name, one in zip(names, found, strict=True)
    ))  # fmt: skip


@click.command(
    epilog=example(
        "ppa categories list",
        "ppa categories remove okapi",
        "ppa categories rename quokka 'short-tailed scrub wallaby'",
    )
)
@click.argument("action", type=click.Choice(["list", "remove", "rename"]))
@click.argument("names", nargs=-1)
@classifier_option
@json_option
def categories(action: str, names: tuple[str, ...], classifier: Path, as_json: bool) -> None:
    """List the categories of a classifier, remove added ones, or rename one (OLD NEW)."""
    from predictor.classifier.classifier_file import load_classifier, save_classifier

    if action == "list" and names:
        raise click.UsageError(f"list takes no names, got {' '.join(names)}")
    if action == "remove" and not names:
        raise click.UsageError("name the categories to remove")
    if action == "rename" and len(names) != 2:
        raise click.UsageError(f"rename takes the old name and the new one, got {len(names)} names")
    learner = load_classifier(classifier)
    if action == "remove":
        for name in names:
            learner.remove(name)
    elif action == "rename":
        learner.rename(*names)
    if action != "list":
        save_classifier(classifier, learner)
    counts = {name: len(examples) for name, examples in learner.support.items()}
    result = {"classifier": str(classifier), "base": list(learner.base), "novel": counts}
    emit(result, as_json, lambda: describe(classifier, learner, counts))


def describe(path: Path, learner: Classifier, counts: dict[str, int]) -> str:
    lines = [f"{path}: {len(learner.base):,} base categories ({learner.base[0]} … {learner.base[-1]})"]
    if counts:
        lines.append(table(["added", "examples"], [[name, count] for name, count in counts.items()]))
    return "\n".join(lines)


@click.command(
    epilog=example("ppa export --onnx classifier.onnx", "ppa export --torch linear.pt --classifier mine.safetensors")
)
@classifier_option
@click.option(
    "--torch",
    "torch_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A state dict for nn.Linear, with row_category.",
)
@click.option(
    "--onnx",
    "onnx_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A graph activations -> scores, probabilities; checked with onnxruntime.",
)
@json_option
def export(classifier: Path, torch_file: Path | None, onnx_file: Path | None, as_json: bool) -> None:
    """Write a classifier for use without this library. Category names go into a .json beside it.

    Older exports are replaced; a file of any other kind is not.
    """
    from cli.filekinds import NAMES, ONNX, TORCH
    from cli.outputs import claim
    from predictor.classifier.classifier_file import load_classifier
    from predictor.classifier.export import export_onnx, export_torch, names_file

    if torch_file is None and onnx_file is None:
        raise click.UsageError("say what to write: --torch FILE, --onnx FILE, or both")
    beside = {names_file(path) for path in (torch_file, onnx_file) if path is not None}  # both may share it
    names = [(path, NAMES) for path in sorted(beside)]
    claim((torch_file, TORCH), (onnx_file, ONNX), *names, inputs=[classifier])
    learner = load_classifier(classifier)
    result: dict[str, Any] = {"rows": len(learner.rows.weight), "categories": len(learner.categories)}
    if torch_file is not None:
        export_torch(learner, torch_file)
        result["torch"] = str(torch_file)
    if onnx_file is not None:
        result["onnx_difference"] = export_onnx(learner, onnx_file)
        result["onnx"] = str(onnx_file)
    emit(result, as_json, lambda: describe_export(result))


def describe_export(result: dict[str, Any]) -> str:
    written = " and ".join(str(result[kind]) for kind in ("torch", "onnx") if kind in result)
    text = f"{written}: {result['rows']:,} rows for {result['categories']:,} categories"
    return text + (f"; onnxruntime agrees within {result['onnx_difference']:.2g}" if "onnx" in result else "")
