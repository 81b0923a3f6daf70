"""`ppa adapt`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.group import emit, example, json_option
from cli.options import STORE, cache_options, filter_options, find_store
from cli.ppa.classifier_option import DEFAULT
from cli.ppa.recognition import say_means_are_computed

if TYPE_CHECKING:
    from torch import Tensor

    from actstore.storage.place import Place
    from predictor.classifier.classifier import Classifier


@click.command(
    epilog=example(
        "ppa adapt --phi runs/phi2 --store imagenet.zarr --support new-animals/",
        "ppa adapt --classifier classifier.safetensors --support more-animals/",
        "ppa adapt --phi runs/phi2 --support-store few.zarr --class okapi --class quokka",
    )
)
@click.option("--phi", type=click.Path(path_type=Path), help="A run of `ppa train`: start from its base categories.")
@click.option(
    "--classifier",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Add to a classifier that `ppa adapt` wrote; without --out this very file is changed.",
)
@click.option(
    "--store",
    type=STORE,
    help="Of the base categories, with --phi.  [default: $ACTSTORE, or the one *.zarr here]",
)
@click.option("--split", "train_split", default="train", show_default=True, help="Of the base categories.")
@click.option("--support", type=click.Path(path_type=Path, file_okay=False), help="DIR/CATEGORY/*.jpg, 1 to n of each.")
@click.option("--support-store", type=STORE, help="Take labelled rows of a store instead.")
@click.option("--support-split", help="Of --support-store.  [default: the only one, or train]")
@filter_options
@click.option("--extend", is_flag=True, help="Add examples to categories that exist.")
@click.option(
    "--aggregate",
    type=click.Choice(["max", "mean"]),
    help="How a category's examples are combined.  [default: as calibrated, else max]",
)
@click.option("--novel-bias", type=float, help="On the novel scores.  [default: as calibrated, else 0]")
@click.option("--weights", type=click.Path(path_type=Path), help="The backbone's weights, where they have moved.")
@click.option("--device", default="auto", show_default=True, help="Of the backbone: auto, cpu, cuda or mps.")
@click.option(
    "--on-error",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="What to do with an image that cannot be read.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="[default: classifier.safetensors, or the file of --classifier]",
)
@click.option("--force", is_flag=True, help="Replace the classifier at OUT, with all that it has learnt.")
@cache_options
@json_option
def adapt(
    phi: Path | None, classifier: Path | None, store: Place | None, train_split: str, support: Path | None,
    support_store: Place | None, support_split: str | None, classes: tuple[str, ...], path_glob: str | None,
    rows: str | None, extend: bool, aggregate: str | None, novel_bias: float | None, weights: Path | None,
    device: str, on_error: str, out: Path | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Learn new categories from a few examples each, with no training, and write a classifier.

    Categories may have different numbers of examples. The classifier file holds everything `ppa predict` needs
    but the backbone's weights.
    """
    from cli.ppa.support import support_from_images, support_from_rows
    from predictor.classifier.classifier_file import save_classifier

    if (phi is None) == (classifier is None):
        raise click.UsageError("start from --phi RUN, or from --classifier FILE: give one of the two")
    if (support is None) == (support_store is None):
        raise click.UsageError("examples come from --support DIR, or from --support-store STORE: give one of the two")
    target = choose_output(out, phi, classifier, force)
    learner = begin(phi, classifier, store, train_split)
    network = learner.about.get("network", {})
    began = time.perf_counter()
    if support is not None:
        examples = support_from_images(network, weights, support, device, on_error)
    else:
        assert support_store is not None
        examples = support_from_rows(network, support_store, support_split, classes, path_glob, rows)
    read = time.perf_counter()
    learn(learner, examples, phi, extend, aggregate, novel_bias)
    took = time.perf_counter() - read
    save_classifier(target, learner)
    count = sum(len(one) for one in examples.values())
    result = {
        "classifier": str(target), "categories": len(learner.categories), "learnt": list(examples), "examples": count,
        "aggregate": learner.aggregate, "novel_bias": learner.novel_bias,
        "support_seconds": read - began, "adapt_milliseconds": 1e3 * took,
    }  # fmt: skip
    emit(result, as_json, lambda: (
        f"{target}: learnt {len(examples):,} categories from {count:,} examples in {1e3 * took:.1f} ms "
        f"(reading them took {read - began:.2f} s); {len(learner.categories):,} categories, "
        f"{learner.aggregate} of the examples, novel bias {learner.novel_bias:g}"
    ))  # fmt: skip


def choose_output(out: Path | None, phi: Path | None, classifier: Path | None, force: bool) -> Path:
    """Where the classifier goes: --classifier alone names what is read and changed in place."""
    from cli.filekinds import CLASSIFIER
    from cli.outputs import claim

    if classifier is not None and (out is None or os.path.realpath(out) == os.path.realpath(classifier)):
        return classifier
    target = out or DEFAULT
    add = "" if classifier is not None else f"add to it with --classifier {target} in place of --phi, "
    advice = f"{add}choose another --out, or replace it with --force"
    claim((target, CLASSIFIER), inputs=[phi, classifier], force=force, advice=advice)
    return target


def begin(phi: Path | None, classifier: Path | None, store: Place | None, train_split: str) -> Classifier:
    import actstore
    from actstore.extraction.recorded_network import network_of
    from predictor.classifier.classifier import Classifier
    from predictor.classifier.classifier_file import load_classifier
    from predictor.protocol.evaluation import class_means
    from predictor.training.trained_phi import load_phi

    if classifier is not None:
        return load_classifier(classifier)
    assert phi is not None
    trained = load_phi(phi)
    rows = actstore.open(find_store(store))[train_split]
    trained.require_store(rows)
    say_means_are_computed(rows)
    about = {"network": network_of(rows), "store": str(rows.store_path), "content": rows.content, "phi": str(phi)}
    base = trained.categories.base
    return Classifier.from_means(trained.phi, base, class_means(rows, base), about=about)


def learn(
    learner: Classifier, examples: dict[str, Tensor], phi: Path | None, extend: bool, aggregate: str | None,
    novel_bias: float | None,
) -> None:  # fmt: skip
    """Add the categories; bias and aggregate by hand, else as phi was calibrated, else as they are."""
    from predictor.phi.calibration import choose_for
    from predictor.phi.calibration_file import load_calibrations

    learner.adapt_all(examples, extend)
    fits = [] if phi is None else load_calibrations(phi if phi.is_dir() else phi.parent)
    fit = choose_for(fits, learner.typical_shots()) if fits else None
    bias = novel_bias if novel_bias is not None else fit.novel_bias if fit else learner.novel_bias
    chosen = aggregate or (fit.aggregate if fit else learner.aggregate)
    learner.calibrate(bias, "mean" if chosen == "mean" else "max")
    _ = learner.rows  # predicted here, so that the time says what learning costs
