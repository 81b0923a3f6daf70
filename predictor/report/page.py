"""The page, put together from what a run's folder holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import actstore
from actstore.images.html_page import html_page
from actstore.storage.atomic_file import as_utf8, write_atomic
from predictor.figures.class_map import ClassMap
from predictor.report.drawing import FIGURES
from predictor.report.findings import Finding, describe_harmonic, describe_novel
from predictor.report.html import class_map_view, code, facts, listing, paragraph, picture, section, table
from predictor.report.provenance import (
    category_facts,
    machine_facts,
    store_facts,
    training_command,
    training_table,
)
from predictor.report.run_folder import CLASS_MAP, RunFolder, read_json, read_records
from predictor.report.tables import all_way_table, episode_table, inference_table, paper_efficiency, shots_filter
from predictor.training.run_files import read_model
from predictor.training.trained_phi import TrainedPhi, load_phi

Record = Mapping[str, Any]
METRICS = (
    "All accuracies are in percent, all-way: a test image competes among base and novel categories. Harmonic mean: of "
    "base and novel top-1. Joint: top-1 over all test images. Delta: the mean loss of top-1 against knowing whether an "
    "image is base or novel. AUSUC: the area under base against novel top-1 over all constants on the novel scores. "
    "AUROC: images of known against unknown categories, half of the novel ones withheld. "
    "±: 95% confidence over support draws. The paper's columns are its top-1 on 1000-way ImageNet with a ResNet-50: "
    "compare the order of the methods, not the size of the figures."
)
FEW_ROWS = (
    "Nearest neighbours in a small share of D_large have few rows of a base category, in the end one, as they have of "
    "a novel one. Nothing favours the base then: novel accuracy rises, base accuracy falls."
)


def write_report(run: RunFolder, out: Path, title: str, warning: str | None = None) -> None:
    """warning: shown on top, such as that the backbone has seen a novel class."""
    write_atomic(out, as_utf8(make_page(run, title, warning)))


def make_page(run: RunFolder, title: str, warning: str | None = None) -> str:
    trained = [load_phi(path) for path in run.phis]
    records: Sequence[Record] = read_records(run.table) if run.table else []
    steps: list[Record] = read_json(run.steps, dict)["steps"] if run.steps else []
    warnings = dict.fromkeys(filter(None, [warning, *(row.get("warning") for row in records)]))
    content = [
        *(f'<p class="warning" role="alert">{escape(text)}</p>' for text in warnings),
        section("run", "What was run", _sentence(run, trained), _steps_table(steps)),
        section("findings", "What it shows", *_findings(records)),
        section("table", "All-way accuracy", *_all_way(records)),
        section("episodes", "N-way tasks of novel categories", *_episodes(run)),
        section("inference", "Inference", *_inference(run)),
        section("figures", "Figures", *_figures(run)),
        section("map", "Map of the categories", *_map(run)),
        section("provenance", "Where it comes from", *_provenance(run, trained)),
        section("commands", "The exact commands", *_commands(steps, trained)),
    ]
    about = "Predicting the parameters of a classifier from activations (Qiao, Liu, Shen and Yuille, CVPR 2018)."
    here = files(__package__)
    return html_page(title, about, "\n".join(filter(None, content)), here / "report.css", here / "report.js")


def _sentence(run: RunFolder, trained: Sequence[TrainedPhi]) -> str:
    text = f"Folder {run.folder}."
    if run.store is not None:
        store = actstore.open(run.store)
        rows = " and ".join(f"{split.rows:,} ({name})" for name, split in store.splits.items())
        text = f"{len(store.classes):,} categories, {rows} images, activations of dim {store.dim}."
    if trained:
        parts = trained[0].categories
        text += (
            f" The backbone and phi learn from {len(parts.base):,} base categories; {len(parts.novel):,} novel ones "
            "are learnt from a few examples each, with no training."
        )
    return paragraph(text)


def _steps_table(steps: Sequence[Record]) -> str:
    rows = [[number, step["title"], (f"{step['seconds']:.1f} s", float(step["seconds"]))]
            for number, step in enumerate((step for step in steps if step.get("done")), 1)]  # fmt: skip
    return table("steps", ["step", "what", "time"], rows) if rows else ""


def _findings(records: Sequence[Record]) -> list[str]:
    counts = [row["shots"] for row in records if row["shots"] != "all"]
    if not counts:
        return []
    shots = min(counts, key=int)
    findings, harmonic = describe_novel(records, shots), describe_harmonic(records, shots)
    other = [finding for finding in findings if finding.as_paper is False]
    intro = f"On novel categories with {shots} example{'s' * (shots != '1')} each, phi2 (no constant) is"
    content = [paragraph(intro), _finding_list(findings), paragraph(harmonic) if harmonic else ""]
    if other:
        content.append(paragraph("Here the order is not the paper's:", "plain"))
        content.append(listing([f"phi2 is {finding.text}" for finding in other]))
        if any(finding.method.is_by_share and finding.method.share == "1%" for finding in other):
            content.append(paragraph(FEW_ROWS))
    elif any(finding.as_paper for finding in findings):
        content.append(paragraph("No order differs from the paper's beyond noise."))
    return content


def _finding_list(findings: Sequence[Finding]) -> str:
    signs = {"ahead": "▲", "behind": "▼", "level": "="}
    items = "".join(
        f'<li class="{finding.standing}"><span aria-hidden="true">{signs[finding.standing]}</span> '
        f"{escape(finding.text)}</li>"
        for finding in findings
    )
    return f'<ul class="findings">{items}</ul>'


def _all_way(records: Sequence[Record]) -> list[str]:
    if not records:
        return []
    hint = paragraph("Sort by a click on a column's name.", "hint")
    fitted: dict[str, list[str]] = {}
    for row in records:
        if row.get("fitted_on") and row["method"] not in fitted.setdefault(row["fitted_on"], []):
            fitted[row["fitted_on"]].append(row["method"])
    notes = [paragraph(f"{', '.join(names)}: constant fitted on {text}.", "hint") for text, names in fitted.items()]
    return [shots_filter(records), hint, all_way_table(records), *notes, paragraph(METRICS, "hint")]


def _episodes(run: RunFolder) -> list[str]:
    if run.episodes is None:
        return []
    rows = read_records(run.episodes)
    note = "Mean accuracy in percent, ± 95% confidence over tasks. The paper's figures are of mini-ImageNet, 5-way."
    return [episode_table(rows), paragraph(note, "hint")]


def _inference(run: RunFolder) -> list[str]:
    if run.bench is None:
        return []
    note = "The paper's times are of a ResNet-50; beside another backbone they say nothing about speed."
    return [inference_table(read_records(run.bench)), paper_efficiency(), paragraph(note, "hint")]


def _figures(run: RunFolder) -> list[str]:
    return [
        picture(path, title) for name, (title, _) in FIGURES.items() if (path := run.figures / f"{name}.png").is_file()
    ]


def _map(run: RunFolder) -> list[str]:
    path = run.figures / CLASS_MAP
    if not path.is_file():
        return []
    note = (
        "t-SNE of the mean activations. Filled points are base categories, rings novel ones, colours the groups of the "
        "figure above. Wheel or pinch to enlarge, drag to move."
    )
    return [class_map_view(ClassMap.load(path)), paragraph(note, "hint")]


def _provenance(run: RunFolder, trained: Sequence[TrainedPhi]) -> list[str]:
    content = [] if run.store is None else [store_facts(actstore.open(run.store))]
    if trained:
        content.append(category_facts(trained[0].categories))
        content.append(training_table(trained, [read_model(phi.path).seconds for phi in trained]))
    head = facts([("head (w_large^pt)", run.head)]) if run.head else ""
    return [*content, head, machine_facts()]


def _commands(steps: Sequence[Record], trained: Sequence[TrainedPhi]) -> list[str]:
    done = [step["command"] for step in steps if step.get("done")]
    if done:
        return [code("\n".join(done))]
    rebuilt = [training_command(phi) for phi in trained]
    return [paragraph("Rebuilt from the records of the trainings:"), code("\n".join(rebuilt))] if rebuilt else []
