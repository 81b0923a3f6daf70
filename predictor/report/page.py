"""The page, put together from what a run's folder holds: its tables beside the paper's figures, the map of its
categories, and where all of it comes from."""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

import actstore
from actstore.images.opening import data_address, html_page
from actstore.storage.atomic_file import as_utf8, write_atomic
from actstore.store import ActivationStore
from predictor.classifier.presentation import render
from predictor.figures.class_map import ClassMap
from predictor.figures.style import COLOURS, readable
from predictor.protocol.calibration import count_shots, load_calibrations
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.results import key_of, read_table, with_interval
from predictor.protocol.setting import contamination
from predictor.report.all_way_table import named
from predictor.report.drawing import CURVES, FIGURES
from predictor.report.findings import describe_phenomenon, describe_run
from predictor.report.run_folder import CLASS_MAP, RunFolder, read_json, read_records
from predictor.training.loop import read_model
from predictor.training.phi import PRESETS
from predictor.training.trained_phi import TrainedPhi, load_phi

MAP_SIDE, MAP_MARGIN = 1000, 30  # units of the class map
Cell = Any  # str, number, None, or (what is shown, what is sorted by)
Record = Mapping[str, Any]
# for macros.html: name, header, rows of cells, and of each row marks such as {"data-shots": "1", "class": "ours"}
ReportTable = dict[str, Any]
ALL_WAY = ("method", "D_large", "shots", "base top-1", "base top-5", "novel top-1", "novel top-5", "harmonic mean",
           "best", "joint", "delta", "AUSUC", "AUROC", "paper base", "paper novel")  # fmt: skip
Facts = list[tuple[str, Any]]  # names and values; those that are None are left out


def write_report(run: RunFolder, out: Path, title: str) -> None:
    """One HTML page of a run. On top it says where the backbone has seen a novel class."""
    warning = None
    if run.store is not None and run.phis:
        store, categories = actstore.open(run.store), load_phi(run.phis[0]).categories
        warning = next((text for name in store.splits if (text := contamination(store[name], categories))), None)
    write_atomic(out, as_utf8(make_page(run, title, warning)))


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
        "steps": done and _table("steps", ["step", "what", "time"], [
            [number, step["title"], (f"{step['seconds']:.1f} s", float(step["seconds"]))]
            for number, step in enumerate(done, 1)
        ]),
        "findings": describe_run(records),
        "all_way": all_way_table(records) if records else None,
        "shots": sorted({row["shots"] for row in records if row["shots"] != "all"}, key=int),
        "fitted": _fitted(records),
        "episodes": episode_table(read_records(run.episodes)) if run.episodes else None,
        "inference": inference_table(read_records(run.bench)) if run.bench else None,
        "efficiency": _table("paper-efficiency", ["the paper's figures", "value", "unit", "where"], [
            [row["what"], _short(float(row["value"])), row["unit"], row["where"]] for row in read_table("efficiency")
        ]),
        "pictures": _pictures(run, [name for name in FIGURES if name != CURVES]),
        "map": map_points(ClassMap.load(class_map)) if class_map.is_file() else None,
        "store": store and store_facts(store),
        "categories": category_facts(trained[0].categories) if trained else None,
        "trainings": training_table(trained) if trained else None,
        "paper_steps": f"{PRESETS['paper'].steps:,}",
        "head": run.head,
        "machine": [
            ("made with", f"actstore {actstore.__version__}, Python {platform.python_version()}"),
            ("machine", f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"),
        ],
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
    return _table("trainings", header, rows)


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


def _table(name: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> ReportTable:
    return {"name": name, "header": header, "rows": rows, "marks": [{}] * len(rows)}


def all_way_table(records: Sequence[Record]) -> ReportTable:
    rows: list[list[Cell]] = []
    marks = []
    for row in records:
        rows.append([
            named(row), _percent(row["d_large"]), _shots(row["shots"]), _with_interval(row, "top1_large"),
            row["top5_large"], _with_interval(row, "top1_few"), row["top5_few"], _with_interval(row, "harmonic_mean"),
            row.get("best_harmonic_mean"), row["joint"], row["delta"], row["ausuc"], row.get("auroc"),
            row.get("paper_top1_large"), row.get("paper_top1_few"),
        ])  # fmt: skip
        marks.append({"data-shots": row["shots"], "class": "ours" if key_of(row).is_phi else "other"})
    return {"name": "all-way", "header": ALL_WAY, "rows": rows, "marks": marks}


def episode_table(rows: Sequence[Record]) -> ReportTable:
    """N-way tasks; the paper's rows that were not run here are left out but for its own method."""
    columns = [key for key in ("one_shot", "five_shot") if any(key in row for row in rows)]
    more = sorted({key for row in rows for key in row if key.endswith("_shot") and not key.startswith("paper_")})
    columns += [key for key in more if key not in columns]
    words = {"one_shot": "1 shot", "five_shot": "5 shots"}
    header = ["method", *(words.get(key, key.replace("_shot", " shots")) for key in columns),
              *(f"paper, {words.get(key, key)}" for key in columns if key in words)]  # fmt: skip
    cells = [
        [row["method"], *(_with_interval(row, key) for key in columns),
         *(_with_interval(row, f"paper_{key}") for key in columns if key in words)]
        for row in rows
    ]  # fmt: skip
    return _table("episodes", header, cells)


def inference_table(results: Sequence[Record]) -> ReportTable:
    header = ["what", "value", "unit", "beside", "its value", "ratio"]
    rows = [
        [row["name"], _short(row.get("value")), row["unit"], row.get("peer"), _short(row.get("peer_value")),
         _short(row.get("ratio"))]
        for row in results
    ]  # fmt: skip
    return _table("inference", header, rows)


def _percent(text: str) -> Cell:
    return (text, float(text.rstrip("%")))


def _shots(text: str) -> Cell:
    return (text, float("1e9") if text == "all" else int(text))


def _with_interval(row: Record, key: str) -> Cell:
    return None if row.get(key) is None else (with_interval(row, key), float(row[key]))


def _short(value: float | None) -> Cell:
    return None if value is None else (f"{value:,.4g}", float(value))


def map_points(shown: ClassMap) -> dict[str, Any]:
    """The class map, which report.js lets a reader move and enlarge: every category a point at its mean's place; names
    come up on hover, and beside the points when enlarged. data: for report.js."""
    places = np.asarray(shown.means)
    low, high = places.min(0), places.max(0)
    scale = (MAP_SIDE - 2 * MAP_MARGIN) / max(float((high - low).max()), 1e-9)
    at = ((places - (low + high) / 2) * scale + MAP_SIDE / 2).tolist()
    group_of = {member: number for number, group in enumerate(shown.groups) for member in group}
    points = [
        {
            "place": place,
            "kind": "novel" if place >= shown.n_base else "base",
            "x": f"{at[place][0]:.1f}",
            "y": f"{MAP_SIDE - at[place][1]:.1f}",
            "colour": COLOURS[group_of[place]] if place in group_of else "",
            "name": readable(shown.names[place]),
        }
        for place in sorted(range(len(at)), key=lambda place: (place in group_of, place))  # groups lie on top
    ]
    data = {"names": [_full(name) for name in shown.names], "base": shown.n_base, "nearest": shown.nearest}
    return {"side": MAP_SIDE, "points": points, "data": data}


def _full(name: str) -> str:
    shown = readable(name)
    return name if shown == name else f"{shown} ({name})"
