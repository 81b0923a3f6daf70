"""`ppa eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cli.group import emit, example, json_option
from cli.options import seed_option
from cli.outputs import claim, claim_kept_table, write_kept
from cli.ppa.options import (
    STORE_OF_PHI,
    head_option,
    held_out_split_option,
    phis_option,
    runs_option,
    search_options,
    shots_option,
    split_file_option,
    table_option,
    train_split_option,
)
from cli.ppa.recognition import make_baselines, open_measured, parse_shots
from cli.stores import Place, store_option
from predictor.report import TABLE


@click.command(
    name="eval",
    epilog=example(
        "ppa eval --phi phi1 --phi phi2",
        "ppa eval --phi runs/phi2 --methods all --head resnet50-900/best.safetensors --draws 50 --out table.md",
        "ppa eval --base head --head resnet50-900/best.safetensors --methods none",
        "ppa eval --methods nn --shots 1,5 --json",
    ),
)
@store_option(STORE_OF_PHI)
@phis_option
@click.option(
    "--methods", default="nn,class-mean", show_default=True,  # these need neither training nor a classifier file
    help="Baselines, with commas: nn, class-mean, simple-shot, ridge, tip-adapter, triplet, attention, …; all or none; "
    "or a class of your own, as my_module:MyMethod.",
)  # fmt: skip
@click.option(
    "--base", type=click.Choice(["head"]),
    help="head: also the network's own classifier as base, centred examples beside it, as it is and calibrated.",
)  # fmt: skip
@head_option(
    "The backbone's classifier of the base classes, for --base head (default: that of the store's own network), "
    "imprint, finetune and child."
)
@runs_option()
@split_file_option
@train_split_option("Where support comes from.")
@held_out_split_option()
@shots_option
@click.option("--draws", type=click.IntRange(1), default=20, show_default=True, help="Of the support.")
@click.option(
    "--aggregate", type=click.Choice(["max", "mean"]),
    help="Of a category's examples by phi: the highest score counts, or phi of their mean.  [default: max, as in the "
    "paper; mean for a phi of `ppa train --examples`]",
)  # fmt: skip
@click.option(
    "--novel-bias", type=float, help="Added to phi's novel scores.  "
    "[default: none, and calibrated rows beside it where `ppa calibrate` was run]",
)  # fmt: skip
@click.option(
    "--wide", is_flag=True, help="Print all figures: top-5, joint, delta, AUROC, differences on the same draws."
)
@search_options
@seed_option
@table_option
@json_option
def evaluate(
    store: Place | None, phis: tuple[Path, ...], methods: str, base: str | None, head: Path | None, runs: Path,
    split_file: Path | None, train_split: str, test_split: str | None, shots: str | None, draws: int, aggregate: Any,
    novel_bias: float | None, wide: bool, search: str, device: str, seed: int, out: Path | None,
) -> None:  # fmt: skip
    """All-way accuracy on base and novel categories: every method on the same support draws, beside the paper.

    Means over draws with 95% confidence intervals. The paper's figures, of 1000-way ImageNet, stand beside them where
    there are as many categories. The table with all figures is kept in results/table.json, where `ppa report` and `ppa
    figures` find it, unless --out is a .json.
    """
    given = parse_shots(shots)
    kept = claim_kept_table(out, TABLE)
    claim(out, inputs=[store, head, split_file, *phis])
    import predictor
    from predictor.protocol import choose_shots, shots_to_fit

    trained, opened, categories = open_measured(store, phis, split_file, train_split)
    train = opened[train_split]
    categories.require_known(train.classes, ("base", "novel"))
    counts = given or choose_shots(None, train, categories.novel, shown=True)  # of the table, and of constants
    compared: list[Any] = make_baselines(
        methods, train=train, split=categories, head=head, runs=runs, seed=seed, search=search, device=device
    )
    compared += [phi if novel_bias is None else phi.as_method(aggregate, novel_bias) for phi in trained]
    if base is not None:
        own = predictor.OwnClassifier(predictor.read_own_head(train, categories.base, head))
        if novel_bias is None:
            fitted = given or [one for one in counts if one in shots_to_fit(None, train, categories, shown=False)]
            own.calibrations = predictor.calibrate(
                own, opened, categories, shots=fitted, train=train_split, test=test_split, seed=seed,
                save=False, progress=True,
            )  # fmt: skip
        compared.append(own)
    if not compared:
        raise click.UsageError("nothing to measure: name a run with --phi, --base head, or baselines with --methods")
    results = predictor.evaluate(
        compared, opened, categories, shots=counts, draws=draws, aggregate=aggregate, train=train_split,
        test=test_split, seed=seed, progress=True,
    )  # fmt: skip
    if out is not None:
        results.save(out)
    write_kept(kept, results.records)
    emit(results.records, results.to_markdown() if wide else results.to_text())
