"""The command `ppa`: predict classifier parameters from activations."""

from __future__ import annotations

import click

from actstore import __version__
from cli.adapt import adapt
from cli.analysis import analyse
from cli.baseline import baseline
from cli.bench_adapt import bench_adapt
from cli.bench_inference import bench_inference
from cli.calibrate import calibrate
from cli.demo import demo
from cli.episodes import episodes
from cli.evaluate import evaluate
from cli.figures import figures
from cli.group import Commands, example
from cli.predict import categories, export, predict
from cli.pretrain import pretrain
from cli.report import report
from cli.split import split
from cli.train import train


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example(
        "ppa train --phi phi2 --store imagenet.zarr",
        "ppa eval --phi runs/phi2",
        "ppa adapt --phi runs/phi2 --support new-animals/",
        "ppa predict photo.jpg",
    ),
)
@click.version_option(__version__, prog_name="ppa")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Teach a trained network a new category from 1-5 examples, with no training."""


for command in (
    pretrain, split, train, calibrate, evaluate, episodes, baseline, adapt, predict, categories, export, analyse,
    bench_inference, bench_adapt,
    figures, report, demo,
):  # fmt: skip
    main.add_command(command)
