"""Where a run's figures come from: the store, its network, the categories, the trainings."""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import actstore
from actstore.store import ActivationStore
from predictor.protocol.calibration import load_calibrations
from predictor.protocol.category_split import CategorySplit
from predictor.report.html import facts, paragraph, table
from predictor.training.phi_config import PRESETS
from predictor.training.trained_phi import TrainedPhi


def store_facts(store: ActivationStore) -> str:
    """The network's rows are of the newest build."""
    rows = ", ".join(f"{name} {split.rows:,}" for name, split in store.splits.items())
    # of rows that were chosen from a store: what it recorded of them
    sources: list[Mapping[str, Any]] = [
        source.get("from", source) for split in store.splits.values() for source in split.sources
    ]
    built = next((source for source in sources if source.get("kind") == "images"), {})
    known = {**store.spec.provenance, **{key: value for key, value in built.items() if value is not None}}
    trained = store.spec.provenance.get("trained_classes")
    return facts([
        ("store", store.path),
        ("rows", f"{rows}; dim {store.dim}, {store.spec.dtype}"),
        ("content", "; ".join(f"{name} {split.content[:16]}…" for name, split in store.splits.items())),
        ("images", known.get("path") or known.get("source")),
        ("backbone", known.get("backbone")),
        ("sha256 of its weights", known.get("weights_sha256")),
        ("layer", known.get("layer")),
        ("transform", json.dumps(known["transform"]) if known.get("transform") else None),
        ("classes the backbone was trained on", None if trained is None else f"{len(trained):,}"),
    ])  # fmt: skip


def category_facts(categories: CategorySplit) -> str:
    parts = [("base (C_large)", categories.base), ("novel (C_few)", categories.novel),
             ("validation", categories.validation)]  # fmt: skip
    return facts([(name, f"{len(names):,}: {names[0]} … {names[-1]}") for name, names in parts if names])


def machine_facts() -> str:
    return facts([
        ("made with", f"actstore {actstore.__version__}, Python {platform.python_version()}"),
        ("machine", f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"),
    ])  # fmt: skip


def training_table(trained: Sequence[TrainedPhi], seconds: Sequence[float]) -> str:
    """How every phi was trained, and the constant that calibration found."""
    rows = []
    for run, took in zip(trained, seconds, strict=True):
        config = run.identity["config"]
        fits = load_calibrations(run.path.parent)
        biases = "; ".join(
            f"{fit.shots} shot{'s' * (fit.shots > 1)} {fit.novel_bias:+.2f} ({fit.aggregate})" for fit in fits
        )
        rows.append([
            run.path.parent.name, config["epochs"] * config["batches"], (f"{config['learning_rate']:g}",
            config["learning_rate"]), config["p_mean"], config["seed"], (f"{took:.0f} s", took), biases,
        ])  # fmt: skip
    header = ["training", "steps", "learning rate", "p_mean", "seed", "time", "constant on the novel scores"]
    full = PRESETS["paper"].steps
    return table("trainings", header, rows) + paragraph(f"The paper trains phi for {full:,} steps.", "hint")


def training_command(run: TrainedPhi) -> str:
    """Rebuilt from the record of a training, for runs that kept no list of commands."""
    config: dict[str, Any] = run.identity["config"]
    usual = PRESETS["paper"].to_json()
    words = ["ppa", "train", "--phi", config["phi"]]
    for name, option in (("epochs", "--epochs"), ("batches", "--batches"), ("learning_rate", "--lr"),
                         ("p_mean", "--p-mean"), ("seed", "--seed")):  # fmt: skip
        if config[name] != usual[name] and not (name == "p_mean" and config["phi"] == "phi2star"):
            words += [option, f"{config[name]:g}"]
    return shlex.join([*words, "--out", str(run.path.parent)])
