"""A training step of phi against the bare products of the same shapes, and learning 100 categories (d = 2048)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import torch

import actstore as library
from actstore.compute.process import Result
from predictor.classifier.classifier import Classifier
from predictor.phi.network import Phi
from predictor.protocol.category_split import alphabetical_split
from predictor.training.phi import PhiTraining, TrainConfig
from tests.bench.common import OUT, actstore, alternate, report

DIM, CLASSES, ROWS, TURNS = 2048, 1000, 100_000, 15  # 900 of the classes are the base


def bare_products(layers: int) -> Callable[[], None]:
    """Forward and backward products of a step, into memory that is there already: nothing else is computed."""
    n = CLASSES * 9 // 10
    statistics, queries, gradient = torch.rand(n, DIM), torch.rand(n, DIM), torch.rand(n, DIM)
    weight, of_weight, logits = torch.rand(DIM, DIM), torch.empty(DIM, DIM), torch.empty(n, n)
    hidden = torch.empty(n, DIM)

    def run() -> None:
        for _ in range(layers):
            torch.mm(statistics, weight.T, out=hidden)
        torch.mm(queries, hidden.T, out=logits)
        torch.mm(logits.T, queries, out=hidden)  # gradient of the parameters
        for layer in range(layers):
            torch.mm(gradient.T, statistics, out=of_weight)
            if layer < layers - 1:
                torch.mm(gradient, weight, out=hidden)  # of the hidden layer; the statistics need none

    return run


def steps_of(training: PhiTraining) -> Callable[[], object]:
    numbers = count()
    return lambda: training.step(next(numbers))


def steps(store: Path) -> list[Result]:
    split = library.open(store)["train"]
    categories = alphabetical_split(split.classes)
    results = []
    for kind, layers in (("phi1", 1), ("phi2", 2)):
        training = PhiTraining(split, None, categories, TrainConfig(phi=kind), torch.device("cpu"))
        times = alternate({"step": steps_of(training), "bare": bare_products(layers)}, TURNS, warm_up=3)
        results.append(
            Result(f"{kind} step, 900 classes", times["step"] * 1e3, "ms", "bare products", times["bare"] * 1e3,
                   times["step"] / times["bare"])
        )  # fmt: skip
    return results


def adaptation() -> Result:
    phi = Phi(TrainConfig(phi="phi2").spec(DIM)).eval().requires_grad_(False)
    base = [f"base {number}" for number in range(900)]
    learner = Classifier.from_means(phi, base, torch.rand(900, DIM))
    examples = torch.rand(100, DIM)

    def adapt() -> None:
        learner.support.clear()
        learner.adapt_all({f"novel {number}": examples[number] for number in range(100)})
        _ = learner.rows

    took = alternate({"adapt": adapt}, 20, warm_up=3)["adapt"]
    # no figure of the paper beside it: its 683 ms are 100 passes of the network, see `ppa bench-adapt`
    return Result("learn 100 categories, 1 example each, from activations", took * 1e3, "ms")


def main() -> None:
    store = OUT / "phi.zarr"
    if not store.exists():
        actstore("synth", store, "--rows", str(ROWS))
        actstore("means", store)
    report("phi", [*steps(store), adaptation()], ["step <= 1.1x the bare products", "100 categories <= 50 ms"])
    shutil.rmtree(store)


if __name__ == "__main__":
    main()
