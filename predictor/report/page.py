"""The page, put together from what a run's folder holds."""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

import actstore
from actstore.images.html_page import data_address, html_page
from actstore.storage.atomic_file import as_utf8, write_atomic
from actstore.store import ActivationStore
from predictor.figures.class_map import ClassMap
from predictor.protocol.calibration import load_calibrations
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.honesty import contamination
from predictor.report.drawing import CURVES, FIGURES
from predictor.report.findings import describe_harmonic, describe_novel, describe_phenomenon
from predictor.report.run_folder import CLASS_MAP, RunFolder, read_json, read_records
from predictor.report.tables import (
    ReportTable,
    all_way_table,
    episode_table,
    inference_table,
    map_points,
    paper_efficiency,
)
from predictor.training.phi import PRESETS
from predictor.training.run_files import read_model
from predictor.training.trained_phi import TrainedPhi, load_phi

Record = Mapping[str, Any]
Facts = list[tuple[str, Any]]  # names and values; those that are None are left out


def write_report(run: RunFolder, out: Path, title: str) -> None:
    """One HTML page of a run. On top it says where the backbone has seen a novel class."""
    write_atomic(out, as_utf8(make_page(run, title, _contamination(run))))


def _contamination(run: RunFolder) -> str | None:
    if run.store is None or not run.phis:
        return None
    store, categories = actstore.open(run.store), load_phi(run.phis[0]).categories
    return next((text for name in store.splits if (text := contamination(store[name], categories))), None)


def make_page(run: RunFolder, title: str, warning: str | None = None) -> str:
    """warning: shown on top."""
    trained = [load_phi(path) for path in run.phis]
    records: Sequence[Record] = read_records(run.table) if run.table else []
    steps: list[Record] = read_json(run.steps, dict)["steps"] if run.steps else []
    done = [step for step in steps if step.get("done")]
    store = None if run.store is None else actstore.open(run.store)
    class_map = run.figures / CLASS_MAP
    context = {
        "warnings": dict.fromkeys(filter(None, [warning, *(row.get("warning") for row in records)])),
        "curves": _pictures(run, [CURVES]),
        "phenomenon": describe_phenomenon(records),
        "sentence": _sentence(run, store, trained),
        "steps": _steps_table(done) if done else None,
        "findings": _findings(records),
        "all_way": all_way_table(records) if records else None,
        "shots": sorted({row["shots"] for row in records if row["shots"] != "all"}, key=int),
        "fitted": _fitted(records),
        "episodes": episode_table(read_records(run.episodes)) if run.episodes else None,
        "inference": inference_table(read_records(run.bench)) if run.bench else None,
        "efficiency": paper_efficiency(),
        "pictures": _pictures(run, [name for name in FIGURES if name != CURVES]),
        "map": map_points(ClassMap.load(class_map)) if class_map.is_file() else None,
        "store": store and store_facts(store),
        "categories": category_facts(trained[0].categories) if trained else None,
        "trainings": training_table(trained) if trained else None,
        "paper_steps": f"{PRESETS['paper'].steps:,}",
        "head": run.head,
        "machine": machine_facts(),
        "commands": [step["command"] for step in done] or [training_command(phi) for phi in trained],
        "are_rebuilt": not done,
    }  # fmt: skip
    about = "Predicting the parameters of a classifier from activations (Qiao, Liu, Shen and Yuille, CVPR 2018)."
    content, here = templates().get_template("page.html").render(context), files(__package__)
    return html_page(title, about, content, here / "report.css", here / "report.js")


def _pictures(run: RunFolder, names: Sequence[str]) -> list[tuple[str, str]]:
    """(title, data address) of those that were drawn."""
    drawn = [(name, run.figures / f"{name}.png") for name in names]
    return [(FIGURES[name][0], data_address(path.read_bytes(), "png")) for name, path in drawn if path.is_file()]


def templates() -> jinja2.Environment:
    loader = jinja2.PackageLoader("predictor", "report")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    return environment


def _sentence(run: RunFolder, store: ActivationStore | None, trained: Sequence[TrainedPhi]) -> str:
    text = f"Folder {run.folder}."
    if store is not None:
        rows = " and ".join(f"{split.rows:,} ({name})" for name, split in store.splits.items())
        text = f"{len(store.classes):,} categories, {rows} images, activations of dim {store.dim}."
    if trained:
        parts = trained[0].categories
        text += (
            f" The backbone and phi learn from {len(parts.base):,} base categories; {len(parts.novel):,} novel ones "
            "are learnt from a few examples each, with no training."
        )
    return text


def _steps_table(done: Sequence[Record]) -> ReportTable:
    rows = [[number, step["title"], (f"{step['seconds']:.1f} s", float(step["seconds"]))]
            for number, step in enumerate(done, 1)]  # fmt: skip
    return ReportTable("steps", ["step", "what", "time"], rows)


def _findings(records: Sequence[Record]) -> dict[str, Any] | None:
    """None where no method was shown examples."""
    shots = min((row["shots"] for row in records if row["shots"] != "all"), key=int, default=None)
    if shots is None:
        return None
    listed = describe_novel(records, shots)
    other = [finding for finding in listed if finding.as_paper is False]
    return {
        "shots": shots, "listed": listed, "harmonic": describe_harmonic(records, shots), "unlike_paper": other,
        "has_few_rows": any(finding.method.is_by_share and finding.method.share == "1%" for finding in other),
        "is_as_paper": any(finding.as_paper for finding in listed),
    }  # fmt: skip


def _fitted(records: Sequence[Record]) -> dict[str, list[str]]:
    """What constants were fitted on -> the methods whose."""
    fitted: dict[str, list[str]] = {}
    for row in records:
        if row.get("fitted_on") and row["method"] not in fitted.setdefault(row["fitted_on"], []):
            fitted[row["fitted_on"]].append(row["method"])
    return fitted


def store_facts(store: ActivationStore) -> Facts:
    """The network's rows are of the newest build."""
    rows = ", ".join(f"{name} {split.rows:,}" for name, split in store.splits.items())
    # of rows that were chosen from a store: what it recorded of them
    sources: list[Mapping[str, Any]] = [
        source.get("from", source) for split in store.splits.values() for source in split.sources
    ]
    built = next((source for source in sources if source.get("kind") == "images"), {})
    known = {**store.spec.provenance, **{key: value for key, value in built.items() if value is not None}}
    trained = store.spec.provenance.get("trained_classes")
    return [
        ("store", store.path),
        ("rows", f"{rows}; dim {store.dim}, {store.spec.dtype}"),
        ("content", "; ".join(f"{name} {split.content[:16]}…" for name, split in store.splits.items())),
        ("images", known.get("path") or known.get("source")),
        ("backbone", known.get("backbone")),
        ("sha256 of its weights", known.get("weights_sha256")),
        ("layer", known.get("layer")),
        ("transform", json.dumps(known["transform"]) if known.get("transform") else None),
        ("classes the backbone was trained on", None if trained is None else f"{len(trained):,}"),
    ]  # fmt: skip


def category_facts(categories: CategorySplit) -> Facts:
    parts = [("base (C_large)", categories.base), ("novel (C_few)", categories.novel),
             ("validation", categories.validation)]  # fmt: skip
    return [(name, f"{len(names):,}: {names[0]} … {names[-1]}") for name, names in parts if names]


def machine_facts() -> Facts:
    return [
        ("made with", f"actstore {actstore.__version__}, Python {platform.python_version()}"),
        ("machine", f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"),
    ]  # fmt: skip


def training_table(trained: Sequence[TrainedPhi]) -> ReportTable:
    """How every phi was trained, and the constant that calibration found."""
    rows = []
    for run in trained:
        took, config = read_model(run.path).seconds, run.identity["config"]
        fits = load_calibrations(run.path.parent)
        biases = "; ".join(
            f"{fit.shots} shot{'s' * (fit.shots > 1)} {fit.novel_bias:+.2f} ({fit.aggregate})" for fit in fits
        )
        rows.append([
            run.path.parent.name, config["epochs"] * config["batches"], (f"{config['learning_rate']:g}",
            config["learning_rate"]), config["p_mean"], config["seed"], (f"{took:.0f} s", took), biases,
        ])  # fmt: skip
    header = ["training", "steps", "learning rate", "p_mean", "seed", "time", "constant on the novel scores"]
    return ReportTable("trainings", header, rows)


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
