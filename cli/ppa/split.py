"""`ppa split`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from cli.group import emit, example, json_option
from cli.options import FILE
from cli.outputs import claim
from cli.ppa.options import SPLIT_FILE
from cli.stores import Place, store_option


@click.command(
    epilog=example(
        "ppa split --store imagenet.zarr",
        "ppa split --store imagenet.zarr --seed 7 --novel-share 0.1 --validation-share 0.1",
        "ppa split --store mini.zarr --from miniimagenet-split.json --validate n01532829 --validate n01558993",
    )
)
@store_option(find=True)
@click.option("--novel-share", type=click.FloatRange(0, 1), default=0.1, show_default=True, help="Of the classes.")
@click.option("--validation-share", type=click.FloatRange(0, 1), default=0.0, show_default=True,
              help="Of the classes: novel ones to choose settings on. Taken from the end of the base, or drawn."
              )  # fmt: skip
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

    opened = actstore.open(store)
    if source is not None and seed is not None:
        raise click.UsageError("--from takes the classes of a file, --seed draws them; choose one")
    if source is not None and validation_share:
        raise click.UsageError("--from takes the classes of a file: name validation classes with --validate instead")
    if source is not None:
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
    warning = None if warning == UNKNOWN_TRAINING else warning  # that is for tables
    result = {"file": str(out), "base": len(categories.base), "novel": len(categories.novel),
              "validation": len(categories.validation), "warning": warning}  # fmt: skip
    base, novel, held = categories.base, len(categories.novel), len(categories.validation)
    text = f"{out}: {len(base):,} base ({base[0]} … {base[-1]}), {novel:,} novel" + f", {held:,} validation" * bool(
        held
    )
    emit(result, "\n".join(filter(None, [f"{text} categories", warning])))
