"""The command `ppa`: predict classifier parameters from activations."""

from __future__ import annotations

from cli.group import Commands, example
from cli.ppa.adapt import adapt
from cli.ppa.baseline import baseline
from cli.ppa.benchmarks import bench_adapt, bench_inference
from cli.ppa.calibrate import calibrate
from cli.ppa.categories import categories, split
from cli.ppa.demo import demo
from cli.ppa.episodes import episodes
from cli.ppa.evaluate import evaluate
from cli.ppa.export import export
from cli.ppa.inspection import analyse, check
from cli.ppa.predict import predict
from cli.ppa.pretrain import pretrain
from cli.ppa.report import figures, report
from cli.ppa.sessions import sessions
from cli.ppa.teach import teach
from cli.ppa.train import train

main = Commands.of(
    "ppa",
    "Teach a trained network a new category from 1-5 examples, with no training.",
    example(
        "ppa train --phi phi2 --store imagenet.zarr",
        "ppa eval --phi runs/phi2",
        "ppa adapt --phi runs/phi2 --support new-animals/",
        "ppa predict photo.jpg",
    ),
    [
        pretrain, split, train, calibrate, evaluate, episodes, sessions, baseline, adapt, predict, check, categories,
        export, teach, analyse, bench_inference, bench_adapt, figures, report, demo,
    ],
)  # fmt: skip
