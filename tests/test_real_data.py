"""The paper's order on real mini-ImageNet activations, after a short training; skipped where the data is not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

import actstore
from baselines.nearest_neighbour import NearestNeighbour
from predictor.phi.rule import PhiMethod
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.evaluation import all_way_task, measure
from predictor.training.phi import choose_config, run_phi_training
from predictor.training.trained_phi import load_phi


def test_phi2_is_ahead_of_nearest_neighbours_on_novel_categories(real_activations: Path, tmp_path: Path) -> None:
    with np.load(real_activations) as data:
        names = [str(name) for name in data["classes"]]
        parts = {name: (data[name], data[f"{name}_labels"]) for name in ("train", "val")}
        split = CategorySplit([names[i] for i in data["base"]], [names[i] for i in data["novel"]])  # type: ignore[arg-type]
    store = actstore.from_arrays(tmp_path / "mini.zarr", parts, classes=names)
    train, test = store["train"], store["val"]
    run_phi_training(train, None, split, choose_config("code", "phi2", epochs=2), tmp_path / "phi2")
    phi = PhiMethod(load_phi(tmp_path / "phi2").phi)
    task = replace(all_way_task(train, test, split), most=2000)
    neighbours = [NearestNeighbour(share) for share in (0.1, 0.01)]
    novel = [measure(method, task, [1], draws=5)[0].mean["top1_few"] for method in (phi, *neighbours)]
    assert novel[0] > novel[2] > novel[1]  # less of D_large, less bias against what is novel; phi needs none of that
