"""`ppa eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cli.group import example, json_option
from cli.options import seed_option
from cli.outputs import claim, claim_kept_table
from cli.ppa import options
from cli.ppa.recognition import emit_results, make_baselines, open_measured
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
@store_option(options.STORE_OF_PHI)
@options.phis_option
@click.option(
    "--methods", default="nn,class-mean", show_default=True,  # these need neither training nor a classifier file
    help="Baselines, with commas: nn, class-mean, simple-shot, ridge, tip-adapter, triplet, attention, …; all or none; "
    "or a class of your own, as my_module:MyMethod.",
)  # fmt: skip
@click.option(
    "--base", type=click.Choice(["head"]),
    help="head: also the network's own classifier as base, centred examples beside it, as it is and calibrated.",
)  # fmt: skip
@options.head_option(
    "The backbone's classifier of the base classes, for --base head (default: that of the store's own network), "
    "imprint, finetune and child."
)
@options.runs_option()
@options.split_file_option
@options.train_split_option("Where support comes from.")
@options.held_out_split_option()
@options.shots_option
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
@options.search_options
@seed_option
@options.table_option
@json_option
def evaluate(
    store: Place | None, phis: tuple[Path, ...], methods: str, base: str | None, head: Path | None, runs: Path,
    split_file: Path | None, train: str, test: str | None, shots: list[int] | None, draws: int, aggregate: Any,
    novel_bias: float | None, wide: bool, search: str, device: str, seed: int, out: Path | None,
) -> None:  # fmt: skip
    """All-way accuracy on base and novel categories: every method on the same support draws, beside the paper.

    Means over draws with 95% confidence intervals. The paper's figures, of 1000-way ImageNet, stand beside them where
    there are as many categories. The table with all figures is kept in results/table.json, where `ppa report` and `ppa
    figures` find it, unless --out is a .json; an earlier one that differs becomes table-1.json, table-2.json and so on.
    """
    if novel_bias is not None and not phis and base is None:
        raise click.UsageError("--novel-bias is added to phi's novel scores: name a run with --phi")
    kept = claim_kept_table(out, TABLE)
    claim(out, inputs=[store, head, split_file, *phis])
    import predictor
    from predictor.protocol import choose_shots, shots_to_fit

    trained, opened, categories = open_measured(store, phis, split_file, train)
    rows = opened[train]
    categories.require_known(rows.classes, ("base", "novel"))
    counts = shots or choose_shots(None, rows, categories.novel, shown=True)  # of the table, and of constants
    compared = make_baselines(
        methods, train=rows, split=categories, head=head, runs=runs, seed=seed, search=search, device=device
    )
    compared += [phi if novel_bias is None else phi.as_method(aggregate, novel_bias) for phi in trained]
    if base is not None:
        own = predictor.OwnClassifier(predictor.read_own_head(rows, categories.base, head))
        if novel_bias is None:
            fitted = shots or [one for one in counts if one in shots_to_fit(None, rows, categories, shown=False)]
            own.calibrations = predictor.calibrate(
                own, opened, categories, shots=fitted, train=train, test=test, seed=seed, save=False, progress=True
            )
        compared.append(own)
    if not compared:
        raise click.UsageError("nothing to measure: name a run with --phi, --base head, or baselines with --methods")
    results = predictor.evaluate(
        compared, opened, categories, shots=counts, draws=draws, aggregate=aggregate, train=train, test=test,
        seed=seed, progress=True,
    )  # fmt: skip
    emit_results(results, out, kept, text=None if wide else results.to_text())
