"""`ppa train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from actstore.progress import is_main_process
from cli.group import emit, example, json_option
from cli.options import FOLDER, combine, device_option, typed_line
from cli.ppa.options import held_out_split_option, run_options, split_file_option, train_split_option
from cli.ppa.recognition import choose_categories, claim_run
from cli.stores import Place, store_option
from predictor.protocol import PHI_KINDS

if TYPE_CHECKING:
    from predictor.training import Trained


class Range(click.ParamType[tuple[int, int]]):
    """3 or 1-5 -> (3, 3) or (1, 5)"""

    name = "range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        first, _, last = str(value).partition("-")
        if not first.isdigit() or not (last or first).isdigit() or not 1 <= int(first) <= int(last or first):
            self.fail(f"expected a number such as 5 or a range such as 1-5, got {value!r}", param, ctx)
        return int(first), int(last or first)


# of a preset; what is not given is the preset's
setting_options = combine(
    click.option("--epochs", type=click.IntRange(1)),
    click.option("--batches", type=click.IntRange(1), help="Per epoch."),
    click.option("--lr", "learning_rate", type=click.FloatRange(0, min_open=True)),
    click.option("--cosine", is_flag=True, default=None, help="The rate falls to 0 along a half cosine."),
    click.option("--weight-decay", type=click.FloatRange(0)),
    click.option("--momentum", type=click.FloatRange(0, 1)),
    click.option("--p-mean", type=click.FloatRange(0, 1), help="How often a category's statistic is its mean."),
    click.option("--examples", type=Range(), metavar="N or N-M", help="Of how many rows a statistic is that is not the "
                 "mean of all; above 1 phi is asked about the mean of several examples."),
    click.option("--input-norm/--no-input-norm", default=None, help="Unit statistics into phi."),
    click.option("--bias/--no-bias", default=None, help="Biases in phi."),
    click.option("--query-norm/--raw-queries", default=None, help="Unit queries with a learnt scale."),
)  # fmt: skip


@click.command(
    epilog=example(
        "ppa train --phi phi1",
        "ppa train --phi phi2 --store imagenet.zarr --split-file split.json --device cuda",
        "torchrun --nproc-per-node 4 --no-python ppa train --phi phi2 --store imagenet21k.zarr",
    )
)
@click.option("--phi", type=click.Choice(PHI_KINDS), default="phi2", show_default=True)
@click.option("--preset", type=click.Choice(["paper", "code"]), default="paper", show_default=True,
              help="The paper's settings, or those of its authors' code.")  # fmt: skip
@store_option(find=True)
@train_split_option("Of the store: D_large.")
@held_out_split_option("Held-out images for the log.  [default: val or test]")
@split_file_option
@click.option("--out", type=FOLDER, help="[default: runs/PHI, or runs/PHI-code]")
@setting_options
@device_option()
@click.option("--resident/--streamed", default=None,
              help="Hold the activations in memory.  [default: on a GPU, if they fill under half of it]")  # fmt: skip
@run_options
@json_option
def train(
    phi: Any, preset: str, store: Place, train: str, test: str | None, split_file: Path | None, out: Path | None,
    **options: Any,
) -> None:  # fmt: skip
    """Train phi, which predicts a category's classifier parameters from its activations, on the base categories.

    Interrupted, the same command goes on and ends with the same weights, bit for bit. OUT holds the weights
    (model.safetensors, model.json), log.csv and curves.png. Under torchrun each process takes a part of the
    categories; the outcome is that of one process but for rounding.
    """
    import actstore
    import predictor
    from actstore.compute import reuse_freed_memory
    from predictor.protocol import contamination, find_test_split
    from predictor.training import failing_once, read_model

    reuse_freed_memory()
    folder = out or Path("runs") / (phi if preset == "paper" else f"{phi}-{preset}")
    with failing_once():
        claim_run(folder, split_file)
        opened = actstore.open(store)
        rows, held_out = opened[train], find_test_split(opened, train, test)
        categories = choose_categories(split_file, opened.classes)
        trained = predictor.train_phi(
            rows, categories, phi, folder, test=held_out, preset=preset, command=typed_line(), progress=True, **options
        )
    if is_main_process():
        model, warning = read_model(trained.path), contamination(rows, categories)
        result = {
            "folder": str(folder), "phi": phi, "preset": preset, "steps": model.steps, "seconds": model.seconds,
            "base": len(categories.base), "novel": len(categories.novel), **model.figures, "warning": warning,
        }  # fmt: skip
        emit(result, "\n".join(filter(None, [summary(phi, folder, model, held_out is None), warning])))


def summary(phi: str, folder: Path, trained: Trained, untested: bool) -> str:
    figures = trained.figures
    text = f"{folder}: {phi} after {trained.steps:,} steps in {trained.seconds:.0f} s, loss {figures['loss']:.4f}"
    if "base_top1" in figures:
        text += f"; held out, all-way, 1 shot: base {figures['base_top1']:.2f}%, novel {figures['novel_top1']:.2f}% "
        text += "(a sample; `ppa eval` measures)"
    elif untested:
        text += "; the store has no split val or test, so nothing was held out"
    return text
