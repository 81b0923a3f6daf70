"""The page, put together from what a run's folder holds, and what its table says in words: where phi2 stands beside
every other method, and where that differs from the paper."""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import hypot
from pathlib import Path
from typing import Any, Literal

import actstore
from actstore.images.opening import data_address, html_page
from actstore.storage.atomic_file import as_utf8, write_atomic
from actstore.store import ActivationStore
from predictor.classifier.presentation import render
from predictor.figures.class_map import ClassMap
from predictor.protocol.calibration import count_shots, load_calibrations
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.results import CALIBRATED, MethodKey, key_of, with_interval
from predictor.protocol.setting import contamination
from predictor.report.all_way_table import OURS
from predictor.report.drawing import CURVES, FIGURES
from predictor.report.run_folder import CLASS_MAP, RunFolder, read_json, read_records
from predictor.report.tables import (
    ReportTable,
    all_way_table,
    episode_table,
    inference_table,
    map_points,
    paper_efficiency,
)
from predictor.training.loop import read_model
from predictor.training.phi import PRESETS
from predictor.training.trained_phi import TrainedPhi, load_phi

Standing = Literal["ahead", "behind", "level"]
PLACES: dict[Standing, str] = {"ahead": "ahead of", "behind": "behind", "level": "level (within noise) with"}
CHANCE = 0.5  # percent: five guesses among a thousand categories
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """standing: of phi2 against the method. as_paper: None where the paper has no such row, or noise decides."""

    method: MethodKey
    text: str
    standing: Standing
    as_paper: bool | None


def describe_novel(records: Sequence[Record], shots: str = "1") -> list[Finding]:
    """phi2 beside every other method without a calibrated constant, by top-1 on novel categories."""
    rows = [row for row in records if row["shots"] == shots and not key_of(row).is_calibrated]
    ours = _ours(rows, "")
    return [] if ours is None else [_describe(ours, row) for row in rows if row is not ours]


def _describe(ours: Record, row: Record) -> Finding:
    standing, as_paper = compare(ours, row, "top1_few"), None
    text = f"{PLACES[standing]} {name_of(row)}: {_against(ours, row, 'top1_few')}"
    if untaught(row):
        note = "its novel top-5 is below chance, so it was not trained long enough for its figure to count"
        return Finding(key_of(row), f"{text}; {note}", standing, None)
    theirs, paper = ours.get("paper_top1_few"), row.get("paper_top1_few")
    if theirs is not None and paper is not None:
        text += f" (paper: {theirs:.2f} against {paper:.2f})"
        as_paper = None if standing == "level" else (standing == "ahead") == (theirs > paper)
    if standing == "behind" and "top1_large" in row:
        text += f"; on base categories {_against(ours, row, 'top1_large')}"
    return Finding(key_of(row), text, standing, as_paper)


def describe_phenomenon(records: Sequence[Record]) -> list[str]:
    """Three sentences: how well the network knows what it was trained on, what becomes of new categories beside it, and
    what a constant makes of it. None where the table lacks phi2 or nearest neighbours."""
    counts = [row["shots"] for row in records if row["shots"] != "all"]
    shots = min(counts, key=int, default="1")
    rows = [row for row in records if row["shots"] == shots]
    ours, fitted = _ours(rows, ""), _ours(rows, CALIBRATED)
    nearest = next((row for row in rows if key_of(row) == MethodKey("nn")), None)
    if ours is None or nearest is None:
        return []
    own = max((row for row in rows if not key_of(row).is_calibrated), key=lambda row: float(row["top1_large"]))
    examples = "one example" if shots == "1" else f"{shots} examples"
    sentences = [
        f"Of the images of known categories up to {own['top1_large']:.0f}% are recognised ({name_of(own)}) while new "
        f"categories, shown by {examples} each, compete with them.",
        f"Beside what is known the new ones drown: nearest neighbours recognise {nearest['top1_few']:.0f}% of their "
        f"images, and phi2, which predicts a classifier from {examples} without training, {ours['top1_few']:.0f}%.",
    ]
    if fitted is not None:
        sentences.append(
            "One constant on the scores of new categories moves a method along its curve; calibrated without any of "
            f"them, phi2 recognises {fitted['top1_large']:.0f}% of the known and {fitted['top1_few']:.0f}% of the new."
        )
    return sentences


def describe_harmonic(records: Sequence[Record], shots: str = "1") -> str | None:
    """Where the calibrated phi2 stands by harmonic mean among methods that were shown these few examples."""
    rows = [row for row in records if row["shots"] == shots]
    ours = _ours(rows, CALIBRATED)
    others = [row for row in rows if row is not ours]
    if ours is None or not others:
        return None
    best = max(others, key=lambda row: float(row["harmonic_mean"]))
    standing = compare(ours, best, "harmonic_mean")
    place = {"ahead": "the best", "level": "within noise of the best other", "behind": "behind the best"}[standing]
    mine, theirs = (with_interval(row, "harmonic_mean") for row in (ours, best))
    what = "The harmonic mean of base and novel top-1 of phi2, calibrated, is"
    return f"{what} {mine}: {place} ({name_of(best)}: {theirs})."


def compare(ours: Record, other: Record, key: str) -> Standing:
    """Level where the 95% interval of the difference on the same draws holds 0; without one, where the means differ by
    less than both intervals together (the root of the sum of squares)."""
    noise = hypot(ours.get(f"{key}_ci95") or 0.0, other.get(f"{key}_ci95") or 0.0)
    difference = float(ours[key]) - float(other[key])
    if other.get("against") == ours["method"] and other.get(f"{key}_difference") is not None:
        difference, noise = -float(other[f"{key}_difference"]), float(other[f"{key}_difference_ci95"])
    if abs(difference) <= noise:
        return "level"
    return "ahead" if difference > 0 else "behind"


def untaught(row: Record) -> bool:
    """Whether a method that trains knows less of novel categories than a blind guess among a thousand would."""
    return row.get("finetuned") == "Y" and float(row.get("top5_few", 100.0)) < CHANCE


def name_of(row: Record) -> str:
    share = f" with {row['d_large']} of D_large" if key_of(row).is_by_share else ""
    return f"{row['method']}{share}"


def _ours(rows: Sequence[Record], variant: str) -> Record | None:
    keys = [(key_of(row), row) for row in rows]
    return next((row for method, row in keys if (method.key, method.variant) == (OURS, variant)), None)


def _against(ours: Record, row: Record, key: str) -> str:
    return f"{with_interval(ours, key)} against {with_interval(row, key)}"


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
    said = list(
        dict.fromkeys("\n".join(filter(None, [warning, *(row.get("warning") for row in records)])).splitlines())
    )
    context = {
        "warnings": [line for line in said if line.startswith("WARNING")],
        "notes": [line for line in said if not line.startswith("WARNING")],
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
    content, here = render("report", "page.html", **context), files(__package__)
    return html_page(title, about, content, here / "report.css", here / "report.js")


def _pictures(run: RunFolder, names: Sequence[str]) -> list[tuple[str, str]]:
    """(title, data address) of those that were drawn."""
    drawn = [(name, run.figures / f"{name}.png") for name in names]
    return [(FIGURES[name][0], data_address(path.read_bytes(), "png")) for name, path in drawn if path.is_file()]


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
        biases = "; ".join(
            f"{count_shots(fit.shots)} {fit.novel_bias:+.2f} ({fit.aggregate}{', failed' * bool(fit.failed)})"
            for fit in sorted(load_calibrations(run.path.parent), key=lambda fit: fit.shots)
            if fit.key in (run.kind, "") and (not fit.base or set(fit.base) == set(run.categories.base))
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
