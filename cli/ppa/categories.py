"""`ppa categories`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from cli.group import emit, example, json_option, table
from cli.options import FILE
from cli.ppa.options import classifier_option


@click.command(
    epilog=example(
        "ppa categories list",
        "ppa categories remove okapi",
        "ppa categories rename quokka 'short-tailed scrub wallaby'",
        "ppa categories label n01440764 'a tench'",
        "ppa categories label --names names.txt",
    )
)
@click.argument("action", type=click.Choice(["list", "remove", "rename", "label"]))
@click.argument("names", nargs=-1)
@classifier_option
@click.option("--names", "names_file", type=FILE,
              help="With label: lines of a category and what it is shown as, or a JSON object.")  # fmt: skip
@json_option
def categories(action: str, names: tuple[str, ...], classifier: Path, names_file: Path | None) -> None:
    """List the categories of a classifier, remove added ones, rename one (OLD NEW), or choose what one is shown as
    (label NAME DISPLAY; an empty DISPLAY takes it away).
    """
    from predictor import load_classifier

    require_names(action, names, names_file)
    learner = load_classifier(classifier)
    if action == "remove":
        for name in names:
            learner.remove(name)
    elif action == "rename":
        learner.rename(*names)
    elif action == "label":
        learner.set_display_names({names[0]: names[1]} if names_file is None else names_file)
    if action != "list":
        learner.save(classifier)
    counts = {name: len(examples) for name, examples in learner.support.items()}
    shown = learner.display_names()
    result = {"classifier": str(classifier), "base": list(learner.base), "novel": counts, "display": shown}
    emit(result, describe(classifier, learner.base, shown, counts))


def require_names(action: str, names: tuple[str, ...], names_file: Path | None) -> None:
    if names_file is not None and action != "label":
        raise click.UsageError("--names belongs to label")
    if action == "list" and names:
        raise click.UsageError(f"list takes no names, got {' '.join(names)}")
    if action == "remove" and not names:
        raise click.UsageError("name the categories to remove")
    if action == "rename" and len(names) != 2:
        raise click.UsageError(f"rename takes the old name and the new one, got {len(names)} names")
    if action == "label" and len(names) != (2 if names_file is None else 0):
        raise click.UsageError(f"label takes a category and its display name, or --names FILE, got {len(names)} names")


def describe(path: Path, base: Sequence[str], shown: Mapping[str, str], counts: Mapping[str, int]) -> str:
    ends = "" if not base else f" ({shown.get(base[0], base[0])} … {shown.get(base[-1], base[-1])})"
    lines = [f"{path}: {len(base):,} base categories{ends}" if base else f"{path}: no base categories"]
    if counts:
        head = ["added", "examples", *(["shown as"] if any(name in shown for name in counts) else [])]
        lines.append(table(head, [[name, count, shown.get(name, "")][: len(head)] for name, count in counts.items()]))
    return "\n".join(lines)
