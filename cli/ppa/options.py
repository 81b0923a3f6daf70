"""Options that several commands of `ppa` take."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from actstore.search import SEARCHES
from cli.options import FILE, PATH, combine, device_option, ending, seed_option
from predictor.protocol import PHI_KINDS

CLASSIFIER_FILE, SPLIT_FILE, RUNS = Path("classifier.safetensors"), Path("split.json"), Path("runs")

classifier_option = click.option(
    "--classifier", type=FILE, default=CLASSIFIER_FILE, show_default=True, help="A file of `ppa adapt`."
)
unknown_option = click.option(
    "--unknown-at", type=float, help="Familiarity (a cosine) below which an image is unknown; -1: none is.  "
    "[default: what 95% of held-out examples reach]",
)  # fmt: skip


class PhiRun(click.ParamType[Path]):
    """A folder of `ppa train`, or the model.safetensors in it; a name alone, such as phi1, stands for runs/phi1."""

    name = "run"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
        below = RUNS / path
        if path.exists() or (path.name != str(value) and path.parent != RUNS):
            return path
        if value in PHI_KINDS or below.exists():
            return below
        close = get_close_matches(path.name, [run.name for run in RUNS.glob("*/")], n=1, cutoff=0.7)
        if close and path.name not in PHI_KINDS:
            self.fail(f"no trained phi at {value}; did you mean {RUNS / close[0]}?", param, ctx)
        return path


PHI_RUN = PhiRun()
STORE_OF_PHI = "The activation store.  [default: the one phi was trained on, $ACTSTORE, or the one *.zarr here]"
phis_option = click.option(
    "--phi", "phis", multiple=True, type=PHI_RUN, help="A run of `ppa train`, such as phi1 or runs/phi1; repeatable."
)


class Numbers(click.ParamType[list[int]]):
    """1,2,3 -> [1, 2, 3], in ascending order and each once."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        try:
            numbers = sorted({int(part) for part in str(value).split(",")})
        except ValueError:
            numbers = [0]
        if numbers[0] < 1:
            option = "" if param is None else param.opts[0]
            raise click.UsageError(
                f"{option} must be whole numbers from 1 on with commas, such as 1,2,3, got {value!r}"
            )
        return numbers


shots_option = click.option(
    "--shots", type=Numbers(), help="Examples of each novel category; several with commas.  [default: 1,2,3,5, as far "
    "as every category has so many]",
)  # fmt: skip
table_option = click.option(
    "--out", type=FILE, callback=ending(".md", ".csv", ".json"), help="Also write it: .md, .csv or .json."
)
split_file_option = click.option(
    "--split-file", type=FILE, help="JSON with lists base and novel, see `ppa split`.  "
    "[default: split.json in this folder, else the first 90% of the classes are the base]",
)  # fmt: skip
run_options = combine(
    seed_option,
    click.option("--checkpoint-seconds", type=click.FloatRange(0), default=15, show_default=True,
                 help="A kill loses at most this much, and a step."),
    click.option("--restart", is_flag=True, help="Discard what is in OUT instead of resuming it."),
)  # fmt: skip
# how nearest neighbours, Triplet and the nearest oracle find rows; every way has the same scores
search_options = combine(
    click.option("--search", type=click.Choice(SEARCHES), default="auto", show_default=True,
                 help="Of nearest rows. auto: bounded where `actstore index` made its index, else exact."),
    device_option("auto", "Of that search: auto, cpu or cuda."),
)  # fmt: skip

calibrated_options = combine(
    click.option("--phi", type=PHI_RUN, help="A run of `ppa train`, such as phi1 or runs/phi1."),
    click.option("--classifier", type=FILE,
                 help="A classifier of `ppa adapt` to set: from --novel-bias, or as fitted for its number of "
                 "examples."),
    click.option("--base", type=click.Choice(["head"]), help="head: of the network's own classifier with centred "
                 "examples: of --head, else of the store's network."),
    click.option("--novel-bias", type=float, help="Set this constant by hand instead of fitting one."),
    click.option("--aggregate", type=click.Choice(["max", "mean"]),
                 help="With --novel-bias: how examples are combined."),
)  # fmt: skip


def head_option(help_: str = "The backbone's classifier of the base classes.") -> Callable[[Any], Any]:
    return click.option("--head", type=FILE, help=help_)


def runs_option(help_: str = "Where `ppa baseline` left its trainings.") -> Callable[[Any], Any]:
    return click.option("--runs", type=PATH, default=RUNS, show_default=True, help=help_)


def train_split_option(help_: str | None = None) -> Callable[[Any], Any]:
    return click.option("--split", "train", default="train", show_default=True, help=help_)


def held_out_split_option(help_: str = "Where test images come from.  [default: test or val]") -> Callable[[Any], Any]:
    return click.option("--test-split", "test", help=help_)
