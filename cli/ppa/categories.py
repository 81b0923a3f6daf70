"""`ppa split` and `ppa categories`: those of a store, known and new, and those of a classifier."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from cli.group import emit, example, json_option, table
from cli.options import FILE, SHARE
from cli.outputs import claim
from cli.ppa.options import SPLIT_FILE, classifier_option
from cli.stores import Place, store_option


@click.command(
    epilog=example(
        "ppa split --store imagenet.zarr",
        "ppa split --store imagenet.zarr --seed 7 --novel-share 0.1 --validation-share 0.1",
        "ppa split --store mini.zarr --from miniimagenet-split.json --validate n01532829 --validate n01558993",
    )
)
@store_option(find=True)
@click.option("--novel-share", type=SHARE, default=0.1, show_default=True, help="Of the classes.")
@click.option("--validation-share", type=SHARE, default=0.0, show_default=True,
              help="Of the classes: novel ones to choose settings on, from the end of the base or drawn.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), help="Draw the classes instead of taking them in alphabetical order.")
@click.option("--from", "source", type=FILE, help="A split file to start from.")
@click.option("--validate", multiple=True, metavar="CLASS", help="Make this base class a validation class; repeatable.")
@click.option("--out", type=FILE, default=SPLIT_FILE, show_default=True)
@click.option("--force", is_flag=True, help="Replace another split at OUT.")
@json_option
def split(
    store: Place, novel_share: float, validation_share: float, seed: int | None, source: Path | None,
    validate: tuple[str, ...], out: Path, force: bool,
) -> None:  # fmt: skip
    """Choose the base (C_large) and novel (C_few) categories of a store, and keep them in a file.

    By default the first 90% of the class names in alphabetical order are the base, as in the paper.
    """
    import actstore
    import predictor
    from predictor.protocol import UNKNOWN_TRAINING, contamination

    if (shares := novel_share + validation_share) >= 1:
        raise click.UsageError(f"--novel-share and --validation-share must be below 1 together, got {shares:g}")
    opened = actstore.open(store)
    if source is not None:
        if seed is not None:
            raise click.UsageError("--from takes the classes of a file, --seed draws them; choose one")
        if validation_share:
            raise click.UsageError("--from takes the classes of a file: name validation classes with --validate")
        categories = predictor.read_split(source)
        categories.require_known(opened.classes)
    else:
        categories = predictor.split_categories(opened, novel_share, validation_share, seed)
    categories = categories.hold_out(validate)
    with suppress(actstore.ActstoreError):
        force = force or predictor.read_split(out) == categories
    claim(out, inputs=[source], force=force,
          advice="it is another split; choose another --out, or replace it with --force")  # fmt: skip
    categories.save(out)
    warning = next((contamination(opened[name], categories) for name in opened.splits), None)
    if warning == UNKNOWN_TRAINING or not categories.novel:  # the one is for tables
        warning = None if categories.novel else "WARNING: no category is novel; choose a larger --novel-share"
    base, novel, held = categories.base, len(categories.novel), len(categories.validation)
    more = f", {held:,} validation" * bool(held) + (" category" if (held or novel) == 1 else " categories")
    text = f"{out}: {len(base):,} base ({base[0]} … {base[-1]}), {novel:,} novel{more}" + f"\n{warning}" * bool(warning)
    emit({"file": str(out), "base": len(base), "novel": novel, "validation": held, "warning": warning}, text)


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
    (label NAME DISPLAY; an empty DISPLAY takes it away)."""
    from predictor import load_classifier

    if names_file is not None and action != "label":
        raise click.UsageError("--names belongs to label")
    wrong = {
        "list": names and f"list takes no names, got {' '.join(names)}",
        "remove": not names and "name the categories to remove",
        "rename": len(names) != 2 and f"rename takes the old name and the new one, got: {' '.join(names) or 'none'}",
        "label": len(names) != (2 if names_file is None else 0)
        and f"label takes a category and its display name, or --names FILE, got: {' '.join(names) or 'none'}",
    }[action]
    if wrong:
        raise click.UsageError(str(wrong))
    learner = load_classifier(classifier)
    for name in names if action == "remove" else ():
        learner.remove(name)
    if action == "rename":
        learner.rename(*names)
    if action == "label":
        learner.set_display_names({names[0]: names[1]} if names_file is None else names_file)
    if action != "list":
        learner.save(classifier)
    counts = {name: len(examples) for name, examples in learner.support.items()}
    base, shown = list(learner.base), learner.display_names()
    ends = "" if not base else f" ({shown.get(base[0], base[0])} … {shown.get(base[-1], base[-1])})"
    lines = [f"{classifier}: {len(base):,} base categories{ends}" if base else f"{classifier}: no base categories"]
    if counts:
        head = ["added", "examples", *(["shown as"] if any(name in shown for name in counts) else [])]
        lines.append(table(head, [[name, count, shown.get(name, "")][: len(head)] for name, count in counts.items()]))
    emit({"classifier": str(classifier), "base": base, "novel": counts, "display": shown}, "\n".join(lines))
