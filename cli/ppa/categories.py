"""`ppa categories`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.group import emit, example, json_option, table
from cli.ppa.classifier_option import classifier_option

if TYPE_CHECKING:
    from predictor.classifier.classifier import Classifier


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
