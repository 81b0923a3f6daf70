"""What the commands of `ppa` share: which store, which categories, which numbers were typed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from actstore import InvalidInputError
from actstore.progress import is_main_process, note
from cli.group import emit
from cli.outputs import claim_folder, write_kept
from cli.ppa.options import SPLIT_FILE
from cli.stores import STORE, ActivationStore, Place, find_store

if TYPE_CHECKING:
    from predictor import CategorySplit, TrainedPhi

PARTS = ("base", "novel", "validation")  # of a split


def claim_run(folder: Path, *inputs: Path | None) -> None:
    """What trainings leave in a folder they may replace there, and nothing of others that has such a name."""
    from predictor.training import RUN_FILES

    if is_main_process():
        claim_folder(folder, RUN_FILES, inputs)


def choose_categories(path: Path | None, names: Sequence[str], parts: Sequence[str] = PARTS) -> CategorySplit:
    """parts: those whose every class must be among the names."""
    from predictor import read_split
    from predictor.protocol import alphabetical_split

    if path is None and SPLIT_FILE.is_file():
        path = SPLIT_FILE
        note(f"categories: {path} of this folder")
    if path is None:
        split = alphabetical_split(names)
        note(
            f"categories: no {SPLIT_FILE} in this folder, so the first 90% of the class names are the base "
            f"({len(split.base):,}), the others novel ({len(split.novel):,}); `ppa split` chooses others"
        )
        return split
    split = read_split(path)
    split.require_known(names, parts)
    return split


def store_of(store: Place | None, phis: Sequence[TrainedPhi]) -> Place:
    """The one that was named, else the one that phi was trained on where it still lies there, else as elsewhere."""
    from predictor.training import noted_store

    for phi in phis if store is None else ():
        if (named := noted_store(phi.path.parent)) is not None:
            place = STORE.convert(named, None, click.get_current_context(silent=True))
            if place.exists():
                local = place.local_path
                inside = local is not None and local.is_relative_to(Path.cwd())
                shown = local.relative_to(Path.cwd()) if local is not None and inside else place
                note(f"store: {shown}, which {phi.path.parent} was trained on")
                return place
    return find_store(store)


def open_measured(
    store: Place | None, phis: Sequence[Path], split_file: Path | None, train_split: str | None = None
) -> tuple[list[TrainedPhi], ActivationStore, CategorySplit]:
    """The phis, the store that they or others are measured on, and its categories. train_split: where it must have
    rows."""
    import actstore
    import predictor

    trained = [predictor.load_phi(path) for path in phis]
    opened = actstore.open(store_of(store, trained))
    names = opened.classes if train_split is None else opened[train_split].classes
    return trained, opened, categories_of(trained, split_file, names)


def categories_of(phis: Sequence[TrainedPhi], split_file: Path | None, names: Sequence[str]) -> CategorySplit:
    """Those that phi was trained with, unless a file is named."""
    if not phis or split_file is not None:
        return choose_categories(split_file, names)
    trained = phis[0].categories
    if SPLIT_FILE.is_file():
        from predictor import read_split

        here = read_split(SPLIT_FILE)
        if (set(here.base), set(here.novel)) != (set(trained.base), set(trained.novel)):
            same_base = set(here.base) == set(trained.base)
            how = f"which --split-file {SPLIT_FILE} measures" if same_base else "for which `ppa train` trains another"
            note(f"categories: those that {phis[0].path.parent} was trained with; {SPLIT_FILE} of this folder names "
                 f"others, {how}")  # fmt: skip
    return trained


def make_baselines(text: str, of_episodes: Sequence[str] = (), **given: Any) -> list[Any]:
    """What --methods names: see `baselines.make`, or where episodes are measured `baselines.make_for_episodes`."""
    import baselines

    names = [] if text.strip() == "none" else [name.strip() for name in text.split(",")]
    try:
        baselines.require_names(names, of_episodes or baselines.NAMES, () if of_episodes else ("all",))
    except InvalidInputError as error:
        raise click.UsageError(str(error)) from error
    return list(baselines.make_for_episodes(*names) if of_episodes else baselines.make(*names, **given, say=note))


def emit_results(
    results: Any, out: Path | None, kept: Path | None = None, chart: Path | None = None, text: str | None = None
) -> None:
    """To where the user wants them, and to where `ppa report` finds them. text: what people read."""
    if out is not None:
        results.save(out)
    if chart is not None:
        results.save_plot(chart)
    write_kept(kept, results.records)
    emit(results.records, results.to_markdown() if text is None else text)
